"""The thread on which all kernels run.

TensorFlow calls Python on threads of its own, where numbers below 2^-126 are flushed to zero, so
that results would differ from the specification; and each of them would start OpenMP threads of
its own. Kernels use all cores anyway, and one at a time needs no locks.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import tensorflow as tf

#: glibc's ``FE_DFL_ENV``: round to nearest, keep small numbers.
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)


def load_openmp() -> None:
    """Load the OpenMP runtime so that its threads sleep when a kernel is done.

    Else they look for the next one for about 10 ms, on cores that TensorFlow, Horovod and other
    ranks wait for: with two ranks of two threads on two cores, kernels took ten times as long and
    a step of MobileNet twice. The runtime reads its settings when it is loaded: where it has been
    already, as by torch, or the user has settings, they stay as they are.
    """
    if os.environ.keys().isdisjoint({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}):
        os.environ["OMP_WAIT_POLICY"] = "passive"
        try:
            with contextlib.suppress(OSError):  # Numba may have found another way to use threads
                ctypes.CDLL("libgomp.so.1")
        finally:
            del os.environ["OMP_WAIT_POLICY"]


load_openmp()


def _start() -> None:
    ctypes.CDLL("libm.so.6").fesetenv(_DEFAULT_ENVIRONMENT)
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    most = numba.config.NUMBA_NUM_THREADS
    numba.set_num_threads(min(threads or most, most))


_worker = ThreadPoolExecutor(1, "gqsgd", _start)


def on_worker(function: Callable) -> Callable:
    """Run a function on the worker, and wait for it."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return _worker.submit(function, *arguments).result()

    return call
