"""Elastic jobs: a worker added, a worker killed; averages stay right at every size."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.parallel.job import ENVIRONMENT, ROOT

pytestmark = [pytest.mark.parallel, pytest.mark.extended]

LIMIT = 420  # seconds


def start(hosts: Path, *program: str) -> subprocess.Popen:
    """A job of two or three workers, on what the file ``hosts`` names at any time."""
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    discover = hosts.with_name("discover.sh")
    discover.write_text(f"#!/bin/sh\ncat {hosts}\n")
    discover.chmod(0o755)
    command = [
        str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2",
        "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(discover),
        sys.executable, *program,
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("script", ["train", "train_tensorflow"])
def test_a_worker_comes_and_a_worker_dies(script, tmp_path):
    hosts, log = tmp_path / "hosts", tmp_path / "log"
    process = start(hosts, "-m", f"tests.parallel.elastic.{script}", str(hosts), str(log))
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"the job did not end within its limit:\n{output[-6000:]}", pytrace=False)
    assert process.returncode == 0, output[-6000:]
    batches = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert [batch for batch, _ in batches] == list(range(12))
    assert [size for _, size in batches] == [2] * 4 + [3] * 4 + [2] * 4


def worker_on(host: str, launcher: int) -> psutil.Process:
    """The worker of an elastic job that has ``host`` to itself."""
    for process in psutil.Process(launcher).children(recursive=True):
        python = process.cmdline()[:1] == [sys.executable]
        if python and process.environ().get("HOROVOD_HOSTNAME") == host:
            return process
    raise LookupError(host)


def test_the_example_grows_shrinks_and_learns(tmp_path):
    hosts, lines = tmp_path / "hosts", []
    process = start(hosts, "examples/pytorch_elastic.py", "--epochs", "24")
    limit = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    assert process.stdout
    with process.stdout as output:
        for line in output:
            lines.append(line)
            if "epoch 1: 2 workers" in line:
                hosts.write_text("localhost:2\n127.0.0.1:1\n")
            if "3 workers" in line and "3 workers" not in "".join(lines[:-1]):
                worker_on("127.0.0.1", process.pid).kill()
    status = process.wait()
    limit.cancel()
    said = "".join(lines)
    assert status == 0, said[-6000:]
    sizes = [int(size) for size in re.findall(r"epoch \d+: (\d) workers", said)]
    assert [size for i, size in enumerate(sizes) if size != sizes[i - 1] or i == 0] == [2, 3, 2]
    accuracy = re.search(r"accuracy ([\d.]+)%", said)
    assert accuracy, said
    assert float(accuracy[1]) > 90
