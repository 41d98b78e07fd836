"""The compressor that users name; it only marks tensors, `seam` sees to them."""

from typing import Any

import torch
from horovod.torch.compression import Compressor

from horovod_gqsgd.compressor import Configured, Dual
from horovod_gqsgd.config import Config


class Gradient(torch.Tensor):
    """A floating tensor on its way to be compressed.

    Horovod chooses its native function by ``tensor.type()``. This type is ours, so that the call
    arrives at `seam` together with name, operation, factors and process set.
    """

    # Operations on it give plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    config: Config

    def type(self, *args: Any, **kwargs: Any) -> Any:
        """The name that Horovod dispatches on; with arguments, torch's conversion."""
        if args or kwargs:
            return super().type(*args, **kwargs)
        return "gqsgd.Gradient"

    def is_contiguous(self, *args: Any, **kwargs: Any) -> bool:  # noqa: ARG002
        """True for Horovod, which refuses other tensors; the exchange takes any layout."""
        return True

    def new(self, *shape: Any) -> torch.Tensor:  # type: ignore[override]
        """A plain tensor for the output: empty, or of the same shape and layout as this one."""
        return torch.empty_like(self.plain()) if shape else self.plain().new()

    def plain(self) -> torch.Tensor:
        """The same tensor without the mark."""
        return self.detach().as_subclass(torch.Tensor)


class _Restore(torch.autograd.Function):
    """Identity whose gradient is marked again: what went compressed comes back compressed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, config: Config) -> torch.Tensor:
        ctx.config = config
        return tensor.as_subclass(torch.Tensor).view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mark(gradients[0], ctx.config), None


def mark(tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """``tensor`` as a `Gradient`, sharing its memory and its place in the autograd graph."""
    marked = tensor.as_subclass(Gradient)
    marked.config = config
    return marked


class GlobalQSGD(Configured, Compressor):
    """Quantise gradients against a norm shared by all workers, and reduce the codes.

    The class itself and its instances both work wherever Horovod takes ``compression=``.
    Parameters are those of `horovod_gqsgd.Config`; ``HOROVOD_GQSGD_<PARAMETER>`` in the
    environment replaces a default.

    >>> GlobalQSGD(bits=6)
    GlobalQSGD(levels='linear', bits=6, norm='inf', block=1024, rounding='correlated',
    min_size=1024, seed=0)
    """

    @Dual
    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Config | None]:
        """Mark a floating tensor; `seam` decides what becomes of it."""
        if not tensor.is_floating_point() or tensor.is_sparse:
            return tensor, None
        return mark(tensor, self.config), self.config

    @Dual
    def decompress(self, tensor: torch.Tensor, ctx: Config | None) -> torch.Tensor:
        """The exchanged tensor; it has been decoded already."""
        if ctx is None or not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.requires_grad:
            return _Restore.apply(tensor, ctx)
        return tensor.as_subclass(torch.Tensor)
