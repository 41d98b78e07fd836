"""A job of one process: nothing is sent, and the result is the input times its factors."""

import subprocess
import sys

CODE = """
import horovod.torch as hvd, torch
from horovod_gqsgd.torch import GlobalQSGD, statistics

hvd.init()
x = torch.randn(5000)
assert torch.equal(hvd.allreduce(x, compression=GlobalQSGD), x)
assert torch.equal(hvd.allreduce(x, op=hvd.Sum, compression=GlobalQSGD(bits=3)), x)
scaled = hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0, compression=GlobalQSGD)
assert torch.equal(scaled, 2 * x)
half = x.bfloat16()
assert torch.equal(hvd.allreduce(half, name="half", compression=GlobalQSGD), half)
assert statistics.tensors == 0
print("one rank is fine")
"""


def test_one_rank():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "one rank is fine\n", done.stderr
