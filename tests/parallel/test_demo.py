"""`make demo` on each of its networks, in a few steps: table, picture, figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_hosts.problem import Problem, isolation

from tests.cluster.test_cluster import NO_NAMESPACES, USER
from tests.parallel.job import ENVIRONMENT, ROOT

pytestmark = pytest.mark.parallel

PARAMETERS = 4 * 5_907_969  # bytes
FIELDS = ["label", "step_ms", "seconds_to_target", "auc", "bytes_per_step", "network"]


def demo(folder: Path, *options: str, before: list[str]) -> tuple[str, list[dict]]:
    """What it prints, and what it writes down."""
    try:
        isolation()
    except Problem as problem:
        pytest.skip(str(problem))
    command = [*before, sys.executable, str(ROOT / "benchmarks" / "demo.py")]
    done = subprocess.run(
        [*command, "--steps", "2", "--output", str(folder), *options],
        capture_output=True, text=True, timeout=300, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.split("Took")[0].splitlines())) <= 80
    assert (folder / "demo.png").stat().st_size > 10_000
    return done.stdout, json.loads((folder / "demo.json").read_text())


def check(output: str, results: list[dict], network: str, share: float) -> None:
    """``share``: of its gradients a rank sends that much in a ring, uncompressed."""
    assert f"Network: {network}" in output
    assert f"Click-through prediction, {network}" in output
    assert "GlobalQSGD(bits=5)   step   2/2  AUC 0." in output
    none, fp16, eight, five = results
    for result in results:
        assert list(result) == FIELDS
        assert result["network"] == network
        assert result["label"] in output
        assert 0.5 < result["auc"] < 0.75
        assert result["seconds_to_target"] is None, "in two steps"
        assert result["step_ms"] > 0
    ring = share * PARAMETERS
    assert 1 <= none["bytes_per_step"] / ring < 1.05
    assert 0.49 < fp16["bytes_per_step"] / none["bytes_per_step"] < 0.52
    assert 0.25 < eight["bytes_per_step"] / none["bytes_per_step"] < 0.27
    assert 0.16 < five["bytes_per_step"] / none["bytes_per_step"] < 0.19


def test_a_user_without_root_sees_four_virtual_hosts(tmp_path):
    found = demo(tmp_path, before=USER)
    check(*found, "4 virtual hosts, 200 Mb/s links", share=1.5)
    assert "Not the first choice" not in found[0]


@pytest.mark.extended
def test_without_namespaces_two_ranks_are_paced(tmp_path):
    found = demo(tmp_path, before=NO_NAMESPACES)
    check(*found, "2 ranks, TCP paced to 200 Mb/s", share=1)
    assert "Not the first choice of network: virtual hosts are network namespaces" in found[0]
    none = found[1][0]
    least = PARAMETERS / 25e6
    assert none["step_ms"] > 900 * least, "what crosses the connection takes that long"


@pytest.mark.extended
def test_loopback_is_called_what_it_is(tmp_path):
    found = demo(tmp_path, "--network", "loopback", before=[])
    check(*found, "2 ranks, loopback at full speed", share=1)


def test_a_network_that_cannot_be_had_is_an_error(tmp_path):
    command = [*NO_NAMESPACES, sys.executable, str(ROOT / "benchmarks" / "demo.py")]
    done = subprocess.run(
        [*command, "--network", "virtual", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: virtual hosts are network namespaces")
    assert "Traceback" not in done.stderr
