"""Threads of kernels: as many as torch uses; and under TensorFlow they do not spin."""

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


SLEEPS = """
import os, time
import numpy as np
from horovod_gqsgd.kernels import norm
from horovod_gqsgd.tensorflow.worker import on_worker
x, out = np.ones(1_000_000, np.float32), np.empty(977, np.int32)
kernel = on_worker(lambda: norm.local(x, "inf", "inf", 1024, out))
kernel()
spent = 0.0
for _ in range(20):
    kernel()
    start = time.process_time()
    time.sleep(0.02)
    spent += time.process_time() - start
print(spent, os.environ.get("OMP_WAIT_POLICY"))
"""


def test_under_tensorflow_threads_sleep_when_a_kernel_is_done():
    """OpenMP's own way takes a core for about 10 ms after each: 200 ms here."""
    env = {**os.environ, "NUMBA_NUM_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "2"}
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        env.pop(name, None)
    done = subprocess.run([sys.executable, "-c", SLEEPS], capture_output=True, text=True, env=env)
    spent, setting = done.stdout.split()
    assert float(spent) < 0.04, done.stderr
    assert setting == "None", "other runtimes are left alone"
