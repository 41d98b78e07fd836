"""A stand-in for a GPU: memory of the host, kernels in Numba's simulator, events that lag.

Kernels run at once. What a GPU copies to the host arrives with the event behind it, and not before.
"""

import threading
from contextlib import contextmanager

import numpy as np
import torch

from horovod_gqsgd.torch.device import SEEN_AS, Cuda

#: What is in memory of the host while a copy to it is under way.
POISON = -0x55555555


class UnderWay(threading.local):
    """Copies since the last event, of a thread."""

    def __init__(self) -> None:
        self.copies: list = []


under_way = UnderWay()


class Pinned(torch.Tensor):
    """Memory of the host that a copy reaches with the next `Event`."""

    def copy_(self, source, non_blocking=False):
        under_way.copies.append((self, source.clone()))
        return self.fill_(POISON)


class Event:
    """Completes only when it is looked at for the third time, as if the device were behind."""

    looks = 0

    def __init__(self) -> None:
        self.copies, under_way.copies = under_way.copies, []

    def query(self) -> bool:
        self.looks += 1
        if self.looks == 3:
            for target, source in self.copies:
                torch.Tensor.copy_(target, source)
        return self.looks > 2


class Simulated(Cuda):
    """Insists on what a GPU would suffer from: launches outside of its stream, early reading."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.inside = False
        self.kernels: list[str] = []
        self.awaited: list[Event] = []

    @property
    def where(self):
        return self.device

    @contextmanager
    def active(self):
        assert not self.inside
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def runs_kernels(self) -> bool:
        return True

    def run(self, kernel, blocks, threads, *arguments) -> None:
        from numba import cuda

        assert self.inside, "launched on somebody else's stream"
        self.kernels.append(kernel.__qualname__.split(".")[0])
        cuda.jit(kernel)[blocks, threads](*arguments)

    def array(self, tensor):
        seen, flat = SEEN_AS[tensor.dtype], tensor.detach().view(-1)
        if flat.dtype in (torch.float16, torch.bfloat16):
            flat = flat.view(torch.int16)
        return flat.numpy().view(seen)

    def empty(self, count, dtype):
        return np.full(count, 85, dtype)

    def tensor(self, array):
        return torch.from_numpy(array.view(np.int32))

    def pinned(self, count):
        return torch.empty(count, dtype=torch.int32).as_subclass(Pinned)

    def event(self):
        return Event()

    def await_here(self, event) -> None:
        self.awaited.append(event)
