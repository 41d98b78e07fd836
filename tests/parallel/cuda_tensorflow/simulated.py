"""A stand-in for a GPU: memory of the host by DLPack, kernels in Numba's simulator."""

import ctypes

import numpy as np

from horovod_gqsgd.tensorflow.device import Cuda, DeviceArray


class Simulated(Cuda):
    """Runs kernels only when somebody waits for them, as a GPU might, and hands out old memory."""

    def __init__(self) -> None:
        super().__init__("CPU:0")
        self.queue: list = []
        self.kernels: list[str] = []

    def memory(self, size, dtype):
        tensor = super().memory(size, dtype)
        self.array(tensor, np.uint8, 0, size * dtype.size)[:] = 0x55
        return tensor

    def _view(self, capsule, size, dtype, start):
        described = DeviceArray(capsule, size, dtype, start)
        raw = (ctypes.c_char * (size * described.dtype.itemsize)).from_address(described.pointer)
        return np.frombuffer(raw, described.dtype)

    def run(self, kernel, blocks, threads, *arguments) -> None:
        self.queue.append((kernel, blocks, threads, arguments))

    def finish(self) -> None:
        from numba import cuda

        for kernel, blocks, threads, arguments in self.queue:
            self.kernels.append(kernel.__qualname__.split(".")[0])
            cuda.jit(kernel)[blocks, threads](*arguments)
        self.queue.clear()
        self.held.clear()
