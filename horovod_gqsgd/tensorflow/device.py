"""A GPU as a stage uses it: memory by DLPack, kernels on a stream of ours.

TensorFlow computes on a stream that it shows to nobody, and that waits for no other. So the order
is kept at both ends of a stage, by waiting for a stream and never for the whole device:
`tf.experimental.dlpack.to_dlpack` returns when all that TensorFlow had put on its stream is done,
so that inputs are filled and nobody uses the memory of outputs any more; `Cuda.finish` returns when
our kernels are done, and the stage returns after it.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd.cuda_kernels import support
from horovod_gqsgd.cuda_kernels.driver import array_at, configured

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _DLTensor(ctypes.Structure):
    """Its beginning; TensorFlow's have no offset, and are contiguous."""

    _fields_ = [("data", ctypes.c_void_p)]


class DeviceArray:
    """Flat memory of a tensor, or a part of it, as kernels take it."""

    def __init__(self, capsule: Any, size: int, dtype: Any, start: int = 0) -> None:
        self.capsule, self.size, self.dtype = capsule, size, np.dtype(dtype)
        managed = _capsule_pointer(capsule, b"dltensor")
        self.pointer = (_DLTensor.from_address(managed).data or 0) + start * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
        }


class Cuda:
    """The GPU that TensorFlow calls ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: list[Any] = []  # memory that kernels may still use
        self.busy: int | None = None  # CUDA's number of the GPU that has been given kernels

    def here(self, tensor: Any) -> Any:
        """A tensor, copied if it is somewhere else."""
        if tensor.device == self.name:
            return tensor
        with tf.device(self.name):
            return tf.identity(tensor)

    def array(self, tensor: Any, dtype: Any, start: int = 0, size: int | None = None) -> Any:
        """A tensor, or ``size`` elements from ``start`` on, as kernels take it; copied to here."""
        here = self.here(tensor)
        self.held.append(here)
        count = here.shape.num_elements() - start if size is None else size
        return self._view(tf.experimental.dlpack.to_dlpack(here), count, dtype, start)

    def memory(self, size: int, dtype: tf.DType) -> Any:
        """A flat tensor of TensorFlow's allocator; int32 and bfloat16 as other types."""
        with tf.device(self.name):
            if dtype == tf.uint8:  # has no `Empty` on a GPU
                return tf.zeros([size], dtype)
            return tf.raw_ops.Empty(shape=[size], dtype=dtype)

    def empty(self, count: int, dtype: Any) -> Any:
        """An array in such memory, until `finish`."""
        words = count * np.dtype(dtype).itemsize // 4
        return self.array(self.memory(words, tf.float32), dtype, 0, count)

    def _view(self, capsule: Any, size: int, dtype: Any, start: int) -> Any:
        return DeviceArray(capsule, size, dtype, start)

    def run(self, kernel: Callable, blocks: int, threads: int, *arguments: Any) -> None:
        """Launch a kernel on our stream."""
        from numba import cuda

        index = next(_ordinal(each.pointer) for each in arguments if isinstance(each, DeviceArray))
        with cuda.gpus[index]:
            given = [
                array_at(each.pointer, each.size, each.dtype, index)
                if isinstance(each, DeviceArray)
                else each
                for each in arguments
            ]
            self.busy = index
            configured(kernel, blocks, threads, _stream(index))(*given)

    def finish(self) -> None:
        """Wait for the kernels, if any are under way."""
        from numba import cuda

        if self.busy is not None:
            with cuda.gpus[self.busy]:
                _stream(self.busy).synchronize()
            self.busy = None
        self.held.clear()


def _ordinal(pointer: int) -> int:
    """CUDA's number of the GPU with this memory; TensorFlow counts only those it may see."""
    from cuda.bindings import driver
    from numba import cuda

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    error, ordinal = driver.cuPointerGetAttribute(attribute, pointer)
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # any will do, but takes memory there
        with cuda.gpus[0]:
            error, ordinal = driver.cuPointerGetAttribute(attribute, pointer)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA does not know the memory of a tensor: {error}")
    return int(ordinal)


@functools.cache
def _stream(ordinal: int) -> Any:
    from numba import cuda

    with cuda.gpus[ordinal]:
        return cuda.stream()


@functools.cache
def available() -> bool:
    """Whether there are GPUs and kernels can run on them; if they cannot, one warning tells why."""
    if not tf.config.list_logical_devices("GPU"):
        return False
    reason = support.missing()
    if reason:
        warnings.warn(
            f"GlobalQSGD quantises tensors of TensorFlow's GPUs on the host: {reason}", stacklevel=2
        )
    return reason is None


def of(tensors: Sequence[Any]) -> Cuda | None:
    """The GPU that the first of the ``tensors`` on one is on; None if all are on the host."""
    for tensor in tensors:
        if tf.DeviceSpec.from_string(tensor.device).device_type == "GPU":
            return Cuda(tensor.device)
    return None
