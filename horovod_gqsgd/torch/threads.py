"""Threads of the kernels and threads of torch, which share one OpenMP runtime."""

import threading

import numba
import torch

_current = threading.local()


def share_threads() -> None:
    """Let kernels use as many threads as torch does, and leave torch its own number.

    Numba, when it starts its pool, sets the number for everybody in the process. A torch that was
    asked for one thread then ran on all cores, and so did the other ranks of the same machine:
    with two ranks on two cores a step of ResNet-50 took 15 times as long.
    """
    threads = torch.get_num_threads()
    use_threads(threads)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def use_threads(threads: int) -> None:
    """Let the kernels that this Python thread calls use so many threads."""
    if _current.__dict__.get("threads") != threads:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        _current.threads = threads
