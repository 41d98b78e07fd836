"""Kernels do not change how many threads torch uses."""

import os
import subprocess
import sys

# In a process of its own: Numba starts its pool once.
CODE = """
import torch
torch.set_num_threads(1)
import numba, numpy as np
from horovod_gqsgd.kernels import norm
from horovod_gqsgd.torch.threads import share_threads
share_threads()
norm.local(np.ones(200_000, np.float32), "inf", "inf", 1024, np.empty(196, np.int32))
print(torch.get_num_threads(), numba.get_num_threads())
torch.set_num_threads(2)
share_threads()
print(torch.get_num_threads(), numba.get_num_threads())
"""


def test_torch_keeps_its_threads_and_kernels_take_as_many():
    env = {**os.environ, "NUMBA_NUM_THREADS": "4", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["1", "1", "2", "2"], done.stderr
