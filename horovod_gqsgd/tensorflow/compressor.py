"""The compressor that users name; it only marks tensors, `seam` sees to them."""

from typing import Any, NamedTuple

import tensorflow as tf
from horovod.tensorflow.compression import Compressor

from horovod_gqsgd.compressor import Configured, Dual
from horovod_gqsgd.config import Config


class Gradient(NamedTuple):
    """A floating tensor on its way to be compressed; Horovod only hands it on to `seam`."""

    tensor: Any
    config: Config


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
    def compress(self, tensor: Any) -> tuple[Any, None]:
        """Mark a floating tensor; `seam` decides what becomes of it."""
        floating = tf.as_dtype(tensor.dtype).is_floating
        return (Gradient(tensor, self.config) if floating else tensor), None

    @Dual
    def decompress(self, tensor: Any, ctx: None) -> Any:  # noqa: ARG002
        """The exchanged tensor; it has been decoded already."""
        return tensor
