"""A stand-in for a GPU: memory of the host, kernels in Numba's simulator, events that lag."""

from contextlib import contextmanager

import numpy as np
import torch

from horovod_gqsgd.torch.device import SEEN_AS, Cuda


class Event:
    """Completes only when it is looked at for the third time, as if the device were behind."""

    looks = 0

    def query(self) -> bool:
        self.looks += 1
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
        return torch.empty(count, dtype=torch.int32)

    def event(self):
        return Event()

    def await_here(self, event) -> None:
        self.awaited.append(event)
