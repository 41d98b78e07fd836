"""Elastic jobs: a worker added, a worker killed; averages stay right at every size."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.job import ENVIRONMENT, ROOT


@pytest.mark.parallel
@pytest.mark.parametrize("script", ["train", "train_tensorflow"])
def test_a_worker_comes_and_a_worker_dies(script, tmp_path):
    hosts, log, discover = tmp_path / "hosts", tmp_path / "log", tmp_path / "discover.sh"
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    discover.write_text(f"#!/bin/sh\ncat {hosts}\n")
    discover.chmod(0o755)
    command = [
        str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2",
        "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(discover),
        sys.executable, "-m", f"tests.parallel.elastic.{script}", str(hosts), str(log),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=420)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"the job did not end within its limit:\n{output[-6000:]}", pytrace=False)
    assert process.returncode == 0, output[-6000:]
    batches = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert [batch for batch, _ in batches] == list(range(12))
    assert [size for _, size in batches] == [2] * 4 + [3] * 4 + [2] * 4
