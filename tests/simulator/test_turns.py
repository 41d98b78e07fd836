"""Threads that take turns are threads of a GPU: barriers hold, and one that is missing shows."""

import numpy as np
import pytest
from numba import cuda, float32


@pytest.mark.parametrize("barrier", [True, False])
def test_what_threads_leave_for_each_other_needs_a_barrier(barrier):
    def turn_round(x):
        shared = cuda.shared.array(64, float32)
        for _ in range(2):
            shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
            cuda.syncthreads()
            x[cuda.threadIdx.x] = shared[63 - cuda.threadIdx.x] + 1
            if barrier:
                cuda.syncthreads()

    x = np.arange(64, dtype=np.float32)
    cuda.jit(turn_round)[1, 64](x)
    assert (x == np.arange(64) + 2).all() == barrier


@pytest.mark.parametrize("first", [True, False])
def test_a_barrier_that_is_not_for_all_threads(first):
    def some_wait(x):
        if (cuda.threadIdx.x == 0) == first:
            cuda.syncthreads()
        x[cuda.threadIdx.x] = 1

    if first:  # the others have ended, which frees the one that waits
        x = np.zeros(64, np.float32)
        cuda.jit(some_wait)[1, 64](x)
        assert x.all()
    else:
        with pytest.raises(RuntimeError, match="thread 1 is at a barrier and others have ended"):
            cuda.jit(some_wait)[1, 64](np.zeros(64, np.float32))


def test_an_error_of_a_thread_is_the_kernel_s():
    def fail(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x + 1] = 1

    with pytest.raises(IndexError):
        cuda.jit(fail)[1, 64](np.zeros(64, np.float32))
