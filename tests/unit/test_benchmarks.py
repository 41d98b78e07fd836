"""Benchmarks: the spelling of compressions, the models, the bytes, the parity report."""

import argparse
import json
import sys
from importlib import metadata
from pathlib import Path

import horovod.torch as hvd
import pytest
from compressions import argument, compressor, sent_bytes
from models import MODELS, workload
from parity_report import write_report
from torch import nn

from horovod_gqsgd.torch import GlobalQSGD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", hvd.Compression.none),
        ("fp16", hvd.Compression.fp16),
        ("gqsgd", GlobalQSGD()),
        ("gqsgd:bits=6", GlobalQSGD(bits=6)),
        ("gqsgd:levels=linear,bits=5,seed=7", GlobalQSGD(bits=5, seed=7)),
        ("gqsgd:norm=(2,inf),block=none", GlobalQSGD(norm=(2, "inf"), block=None)),
        ("gqsgd:norm=2,rounding=independent", GlobalQSGD(norm=2, rounding="independent")),
    ],
)
def test_compression_is_what_its_text_says(text, expected):
    assert compressor(text) == expected
    assert argument(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", "there are none, fp16, gqsgd"),
        ("none:bits=6", "there are none, fp16, gqsgd"),
        ("gqsgd:bits", "name=value"),
        ("gqsgd:", "name=value"),
        ("gqsgd:bits=6,bits=8", "bits is given twice"),
        ("gqsgd:bits=7", "bits=7 is not allowed"),
        ("gqsgd:bits=six", "bits='six': not a bits"),
        ("gqsgd:width=6", "no parameter 'width'"),
        ("gqsgd:base=2", 'only levels="exponential"'),
    ],
)
def test_a_wrong_compression_is_told_why(text, message):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        argument(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("resnet50", 25_557_032, 161),
        ("vgg16", 138_357_544, 32),
        ("vgg16-pooled", 37_694_248, 32),
        ("transformer", 10_942_464, 77),
        ("embedding", 5_925_601, 10),
    ],
)
def test_models_have_the_parameters_they_are_known_for(name, parameters, tensors):
    work = workload(name, batch=2, image=32, sequence=16)
    assert (work.parameter_count, work.tensor_count) == (parameters, tensors)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "vgg16"])
def test_every_parameter_of_a_model_gets_a_dense_gradient(name):
    work = workload(name, batch=2, image=32, sequence=16)
    work.loss().backward()
    for key, parameter in work.model.named_parameters():
        assert parameter.grad is not None, key
        assert not parameter.grad.is_sparse, key


def test_sent_bytes_count_small_tensors_as_they_are():
    model = nn.Linear(1000, 10)  # 40,000 bytes in the weight, 40 in the bias
    nothing = dict.fromkeys(("raw_bytes", "norm_bytes", "word_bytes"), 0)
    assert sent_bytes("none", model, nothing, 3) == 40_040
    assert sent_bytes("fp16", model, nothing, 3) == 20_020
    totals = {"raw_bytes": 120_000, "norm_bytes": 156, "word_bytes": 30_000, "sends": 3}
    assert sent_bytes("gqsgd", model, totals, 3) == 52 + 10_000 + 40


def run(compression: str, seed: int, metric: float, **more) -> dict:
    losses = [2.0, 1.0, 0.5]
    fixed = {"task": "digits", "steps": 18, "bytes_per_step": 10, "snr_db": None, "losses": losses}
    return {**fixed, "compression": compression, "seed": seed, "metric": metric, **more}


def test_parity_report_tells_what_lies_outside_the_spread(tmp_path):
    results = [run("none", seed, metric) for seed, metric in enumerate((98.0, 98.5, 99.0))]
    results += [run("gqsgd", seed, 98.0, snr_db=30.0) for seed in range(3)]
    results += [run("gqsgd:bits=5", seed, 96.0, snr_db=12.0) for seed in range(3)]
    write_report(json.loads(json.dumps(results)), 2, tmp_path)
    lines = (tmp_path / "parity.md").read_text().splitlines()
    by_name = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert "| 98.500 | +0.000 | +0.000 to +0.000 | yes | 10 | exact |" in by_name["none"]
    assert "| 98.000 | -0.500 | -1.000 to +0.000 | yes | 10 | 30 dB |" in by_name["gqsgd"]
    assert "| 96.000 | -2.500 | -3.000 to -2.000 | **no** | 10 | 12 dB |" in by_name["gqsgd:bits=5"]
    assert (tmp_path / "parity.png").stat().st_size > 10_000


def test_no_script_hides_a_package():
    """Theirs is the first folder that Python looks in: torch would import a cuda.py of ours."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    here = {path.stem for path in folder.iterdir()} - {"__pycache__"}
    assert not here & {*sys.stdlib_module_names, *metadata.packages_distributions()}
