"""Registered reductions in jobs of their own: the example, and a rank that has not registered."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.parallel.job import ENVIRONMENT, ROOT

FORGOTTEN = """
    import horovod.torch as hvd, numpy as np, torch
    from horovod_gqsgd.torch import GlobalQSGD, register_reduction

    def median(codes, levels, dither):
        return levels.encode(np.median(levels.decode(codes), axis=0), dither)

    hvd.init()
    if hvd.rank() == 0:
        register_reduction("median", median)
    try:
        compression = GlobalQSGD(levels="exponential", reduction="median")
        hvd.allreduce(torch.ones(2048), name="g", compression=compression)
    except Exception as error:
        print(f"rank {hvd.rank()}: {type(error).__name__}: {error}", flush=True)
        raise
"""


def horovodrun(np: int, *command: str) -> subprocess.CompletedProcess:
    launcher = str(Path(sys.executable).with_name("horovodrun"))
    return subprocess.run(
        [launcher, "--gloo", "-np", str(np), sys.executable, *command],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


@pytest.mark.parallel
def test_robust_aggregation_example():
    done = horovodrun(3, "examples/robust_aggregation.py")
    assert done.returncode == 0, done.stderr
    errors = dict(re.findall(r"(\w+): error ([\d.]+)", done.stdout))
    assert float(errors["exact"]) > 1
    assert float(errors["trimmed_mean"]) < 0.2


@pytest.mark.extended
@pytest.mark.parallel
def test_a_rank_that_has_not_registered_ends_the_job(tmp_path):
    """It raises where the compressor is made; its exit shuts Horovod down on the others."""
    script = tmp_path / "forgotten.py"
    script.write_text(textwrap.dedent(FORGOTTEN))
    done = horovodrun(2, str(script))
    assert done.returncode != 0
    assert "rank 1: ValueError: reduction='median' is not registered" in done.stdout
    assert "rank 0: HorovodInternalError: Horovod has been shut down" in done.stdout
