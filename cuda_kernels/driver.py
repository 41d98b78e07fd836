"""Kernels and device memory as Numba takes them, whichever framework they belong to."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@functools.cache
def compiled(kernel: Callable) -> Any:
    """A kernel that can be launched."""
    from numba import cuda

    return cuda.jit(kernel, lto=False)  # as it is tested: no other optimiser behind it


@functools.lru_cache(maxsize=8192)
def configured(kernel: Callable, blocks: int, threads: int, stream: Any) -> Any:
    """A kernel on its grid, to be called with its arguments.

    Numba keeps 128 of these, of all kernels together: fewer than a model has tensors.
    """
    with _without_advice():
        return compiled(kernel)[blocks, threads, stream]


_ADVICE = "CUDA_LOW_OCCUPANCY_WARNINGS"
_advice_lock = threading.Lock()


@contextmanager
def _without_advice() -> Iterator[None]:
    """Without Numba's warning of grids under 128 blocks: small tensors have no more work.

    Kernels of the user's own are warned of as before, and ours if the user's environment says so.
    """
    from numba.cuda.dispatcher import config

    if f"NUMBA_{_ADVICE}" in os.environ:
        yield
        return
    with _advice_lock:
        before = getattr(config, _ADVICE)
        setattr(config, _ADVICE, 0)
        try:
            yield
        finally:
            setattr(config, _ADVICE, before)


@functools.lru_cache(maxsize=1024)
def stream_at(handle: int, device: int) -> Any:
    """A framework's stream as Numba takes it, one object for all its launches.

    By device, since the default stream of each has the same handle.
    """
    from numba import cuda

    return cuda.external_stream(handle)


@functools.lru_cache(maxsize=8192)
def array_at(pointer: int, size: int, dtype: np.dtype, device: int) -> Any:
    """Numba's view of device memory; it owns nothing, and is used only while its owner lives."""
    from numba.cuda.api import from_cuda_array_interface

    described = {"shape": (size,), "typestr": dtype.str, "data": (pointer, False), "version": 3}
    return from_cuda_array_interface(described)
