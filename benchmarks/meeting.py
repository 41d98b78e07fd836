"""Where the ranks of a benchmark wait for one another."""

import time

import horovod.torch as hvd
import torch


def meet() -> None:
    """Wait for all ranks, asleep: Horovod's own waiting spins, on cores that others still need.

    Or, on hosts with a share of CPU time, on the share that the waiting rank needs afterwards.
    """
    handle = hvd.allreduce_async(torch.zeros(1), name="meet")
    while not hvd.poll(handle):
        time.sleep(0.001)
    hvd.synchronize(handle)
