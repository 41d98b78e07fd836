"""Kernels and device memory as Numba takes them, whichever framework they belong to."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


@functools.cache
def compiled(kernel: Callable) -> Any:
    """A kernel that can be launched."""
    from numba import cuda

    return cuda.jit(kernel, lto=False)  # as it is tested: no other optimiser behind it


@functools.lru_cache(maxsize=8192)
def array_at(pointer: int, size: int, dtype: np.dtype, device: int) -> Any:
    """Numba's view of device memory; it owns nothing, and is used only while its owner lives."""
    from numba.cuda.api import from_cuda_array_interface

    described = {"shape": (size,), "typestr": dtype.str, "data": (pointer, False), "version": 3}
    return from_cuda_array_interface(described)
