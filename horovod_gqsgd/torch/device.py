"""A GPU as the exchange uses it: kernels on the current stream, memory from torch, no waiting."""

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from horovod_gqsgd.cuda_kernels import support
from horovod_gqsgd.cuda_kernels.driver import array_at, configured, stream_at

#: How kernels see a gradient type that NumPy or Numba lack: as the integers of its bits.
SEEN_AS: dict[torch.dtype, Any] = {
    torch.float16: np.int16,
    torch.bfloat16: np.uint16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
}
STORED_AS: dict[Any, torch.dtype] = {
    np.int32: torch.int32,
    np.uint32: torch.int32,
    np.float32: torch.float32,
    np.float64: torch.float64,
}

#: Horovod's setting not to wait for the GPU before it says that an operation is done.
ASYNC_COMPLETION = "HOROVOD_ENABLE_ASYNC_COMPLETION"


class DeviceArray:
    """A flat contiguous tensor as kernels take it."""

    def __init__(self, tensor: torch.Tensor, dtype: Any) -> None:
        self.tensor, self.dtype, self.size = tensor, np.dtype(dtype), tensor.numel()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": self.dtype.str,
            "data": (self.tensor.data_ptr(), False),
            "version": 3,
        }


class Cuda:
    """The device and the stream that a gradient is on when its exchange begins.

    All of an exchange runs on that stream, whichever thread carries it on; who waits for its
    result lets a stream of their own wait for `event`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.current_stream(device)

    @property
    def where(self) -> Any:
        """What buffers belong to: kernels of one stream follow one another."""
        return self.device, self.stream

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make device and stream the current ones, for kernels, for torch and for Horovod.

        With `ASYNC_COMPLETION` a handle of Horovod is done before its result is there: Horovod's
        thread has let torch's default stream wait for it, and no other.
        """
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if os.environ.get(ASYNC_COMPLETION, "0") != "0":
                self.stream.wait_stream(torch.cuda.default_stream(self.device))
            yield

    def runs_kernels(self) -> bool:
        """Whether kernels can run; if not, one warning tells why."""
        reason = support.missing()
        if reason:
            _warn(reason)
        return reason is None

    def run(self, kernel: Callable, blocks: int, threads: int, *arguments: Any) -> None:
        """Launch a kernel on the stream."""
        stream = stream_at(self.stream.cuda_stream, self.device.index)
        configured(kernel, blocks, threads, stream)(*map(self._argument, arguments))

    def _argument(self, given: Any) -> Any:
        if not isinstance(given, DeviceArray):
            return given
        return array_at(given.tensor.data_ptr(), given.size, given.dtype, self.device.index)

    def array(self, tensor: torch.Tensor) -> Any:
        """A contiguous tensor as kernels take it."""
        return DeviceArray(tensor.detach().view(-1), SEEN_AS[tensor.dtype])

    def empty(self, count: int, dtype: Any) -> Any:
        """An array in memory of torch's allocator."""
        stored = torch.empty(count, dtype=STORED_AS[dtype], device=self.device)
        return DeviceArray(stored, dtype)

    def tensor(self, array: Any) -> torch.Tensor:
        """The tensor of an array from `empty`; uint32 as int32."""
        return array.tensor

    def pinned(self, count: int) -> torch.Tensor:
        """Memory of the host, int32, for copies that nobody waits for."""
        return torch.empty(count, dtype=torch.int32, pin_memory=True)

    def event(self) -> Any:
        """What has been launched so far: ``query()`` tells whether it is done."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def await_here(self, event: Any) -> None:
        """Let the caller's current stream, not the caller, wait for an event."""
        torch.cuda.current_stream(self.device).wait_event(event)


def missing() -> str | None:
    """Why there are no CUDA tensors with kernels here, and the fix; None if there are."""
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} finds no GPU that it can use: install a CUDA build of it, "
            "for the driver that `nvidia-smi` shows"
        )
    return support.missing()


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(f"GlobalQSGD quantises CUDA tensors on the host: {reason}", stacklevel=2)


def of(tensors: Sequence[torch.Tensor]) -> Cuda | None:
    """The GPU that all ``tensors`` are on; None for the host."""
    devices = {tensor.device for tensor in tensors}
    if all(device.type != "cuda" for device in devices):
        return None
    if len(devices) > 1:
        _warn("a group spans several devices")
        return None
    return Cuda(devices.pop())
