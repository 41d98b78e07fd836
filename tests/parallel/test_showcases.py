"""The scripts that users start themselves run under horovodrun and leave what they promise."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.job import ENVIRONMENT, ROOT

pytestmark = pytest.mark.parallel

HOROVODRUN = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]


def run(*command: str) -> str:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "COLUMNS": "120"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.extended
def test_synthetic_benchmark_in_the_style_of_horovod(tmp_path):
    result = tmp_path / "result.json"
    output = run(
        *HOROVODRUN, sys.executable, "benchmarks/synthetic.py", "--model", "embedding",
        "--batch-size", "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "2",
        "--num-iters", "2", "--compression", "none", "gqsgd:bits=5", "--json", str(result),
    )  # fmt: skip
    for line in ("Model: embedding", "Batch size: 2", "Iter #1: none", "Total sample/sec on 2"):
        assert line in output
    found = json.loads(result.read_text())
    none, compressed = found["results"]
    assert (found["ranks"], none["bytes per step"]) == (2, 4 * 5_925_601)
    # six elements in a word, a norm for every 1,024, a header for every tensor
    assert 5.9 < none["bytes per step"] / compressed["bytes per step"] < 6.0
    assert all(compressed[f"{phase} ms"] > 0 for phase in ("norm", "encode", "wait", "decode"))
    assert 0 <= compressed["sent during backward"] <= 1
    assert len(compressed["seconds per step"]) == 2


@pytest.mark.extended
def test_keras_benchmark_in_the_style_of_horovod():
    output = run(
        *HOROVODRUN, sys.executable, "benchmarks/keras_synthetic.py", "--model", "MobileNetV2",
        "--image-size", "32", "--batch-size", "2", "--num-warmup-batches", "1",
        "--num-batches-per-iter", "1", "--num-iters", "2", "--compression", "gqsgd",
    )  # fmt: skip
    for line in ("Model: MobileNetV2", "Iter #1: [gqsgd]", "Total img/sec on 2 CPU(s)"):
        assert line in output
    sent = re.search(r" x +│ +([\d,]+) +│", output)
    assert sent, output
    assert 3.4e6 < int(sent[1].replace(",", "")) < 4.3e6, "of 13.9 MB"


@pytest.mark.parametrize("example", ["keras_fit", "tensorflow_tape"])
def test_tensorflow_examples_learn(example):
    output = run(*HOROVODRUN, sys.executable, f"examples/{example}.py", "--epochs", "6")
    accuracy = re.search(r"accuracy ([\d.]+)%", output)
    assert accuracy, output
    assert float(accuracy[1]) > 90


def test_mixed_precision_example_learns():
    output = run(*HOROVODRUN, sys.executable, "examples/pytorch_amp.py")
    accuracy = re.search(r"accuracy ([\d.]+)%, loss scale 4096", output)
    assert accuracy, output
    assert float(accuracy[1]) > 90


@pytest.mark.extended
def test_keras_parity_ends_with_a_table():
    output = run(
        *HOROVODRUN, sys.executable, "benchmarks/keras_parity.py", "--seeds", "1",
        "--epochs", "1", "--compression", "gqsgd",
    )  # fmt: skip
    assert re.search(r"\| `gqsgd` \| [\d.]+ \| [\d.]+ \| 153,\d\d\d \|", output), output


@pytest.mark.extended
def test_parity_goes_on_where_it_stopped(tmp_path):
    results = tmp_path / "results.json"
    finished = {
        "digits, none, seed 0, 3 steps, 2 ranks": {
            "task": "digits", "compression": "none", "seed": 0, "metric": 12.5, "steps": 3,
            "bytes_per_step": 605_224, "snr_db": None, "losses": [2.3],
        }
    }  # fmt: skip
    results.write_text(json.dumps(finished))
    output = run(
        *HOROVODRUN, sys.executable, "benchmarks/parity.py", "--task", "digits", "--seeds", "1",
        "--steps", "3", "--results", str(results), "--docs", str(tmp_path),
        "--compression", "none", "gqsgd",
    )  # fmt: skip
    assert "1/1 digits, gqsgd, seed 0" in output
    found = json.loads(results.read_text())
    assert len(found) == 2
    assert finished.items() <= found.items()
    page = (tmp_path / "parity.md").read_text()
    assert "| `none` | 12.500 |" in page
    assert "| `gqsgd` |" in page
