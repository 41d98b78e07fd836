"""A job of one process: nothing is sent, and the result is the input times its factors."""

import os
import subprocess
import sys

import pytest

TORCH = """
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
exponential = GlobalQSGD(levels="exponential", bits=2)
assert torch.equal(hvd.allreduce(x, name="levels", compression=exponential), x)
first, second = hvd.grouped_allreduce([half, x], op=hvd.Sum, compression=exponential)
assert torch.equal(first, half) and torch.equal(second, x)
assert statistics.tensors == 0
print("one rank is fine")
"""

TENSORFLOW = """
import horovod.tensorflow as hvd, tensorflow as tf
from horovod_gqsgd.tensorflow import GlobalQSGD, statistics

hvd.init()
x = tf.random.normal([5000])

def check(result, expected):
    assert result.dtype == expected.dtype and tf.reduce_all(result == expected)

def average(x, **options):
    return hvd.allreduce(x, **{"compression": GlobalQSGD, **options})

for traced in (lambda f: f, tf.function):
    check(traced(average)(x), x)
    check(traced(lambda x: average(x, op=hvd.Sum, compression=GlobalQSGD(bits=3)))(x), x)
    check(traced(lambda x: average(x, prescale_factor=0.5, postscale_factor=4.0))(x), 2 * x)
    check(traced(lambda x: average(x, compression=GlobalQSGD(levels="exponential", bits=2)))(x), x)
    half = tf.cast(x, tf.bfloat16)
    check(traced(average)(half), half)
assert statistics.tensors == 0
print("one rank is fine")
"""


@pytest.mark.parametrize("code", [TORCH, TENSORFLOW], ids=["torch", "tensorflow"])
def test_one_rank(code):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.stdout == "one rank is fine\n", done.stderr
