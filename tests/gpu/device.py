"""The checks of `tests.unit.cuda_checks` on a GPU."""

from typing import Any

import numpy as np
import torch

from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels.launch import Launcher
from horovod_gqsgd.torch.device import Cuda, DeviceArray


class Gpu:
    """Arrays on the GPU; `numpy` is the only one to wait for it."""

    def __init__(self) -> None:
        self.place = Cuda(torch.device("cuda", torch.cuda.current_device()))

    def launcher(self, config: Config, rank: int, n: int) -> Launcher:
        return Launcher(config, rank, n, self.place.run, self.place.empty)

    def array(self, values: np.ndarray) -> DeviceArray:
        stored = torch.from_numpy(values.view(np.uint8).copy()).to(self.place.device)
        array = DeviceArray(stored, values.dtype)
        array.size = values.size
        return array

    def numpy(self, array: Any) -> np.ndarray:
        return array.tensor.cpu().view(-1).numpy().view(array.dtype)
