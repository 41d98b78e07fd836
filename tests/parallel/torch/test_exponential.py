"""``levels="exponential"`` through Horovod: codes, a registered reduction, two ways to carry it."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from horovod_gqsgd import reductions, shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import (
    DisagreementError,
    GlobalQSGD,
    JoinedError,
    ReductionError,
    native,
    register_reduction,
    statistics,
)
from tests.parallel.torch.specification import expected, gradient
from tests.parallel.torch.test_allreduce import FLOATS, everyone, identical
from tests.parallel.torch.test_optimizer import Model, batch, loss, replicas_identical

names = itertools.count()


def exponential(**parameters):
    return GlobalQSGD(levels="exponential", **parameters)


@pytest.fixture(params=["gather", "scatter"])
def way(request, monkeypatch):
    """Both ways for tensors of any size."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**62 if request.param == "gather" else 0)
    return request.param


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(reductions, "_registry", dict(reductions._registry))


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"bits": 2, "block": None},
        {"bits": 3, "rounding": "independent", "seed": 7},
        {"bits": 4, "reduction": "pairwise"},
        {"bits": 5, "base": 2**0.5, "block": 128},
        {"bits": 6, "reduction": "pairwise"},
        {"bits": 8, "base": 2, "reduction": "median"},
        {"norm": (1, "inf")},
        {"norm": 2, "bits": 7},
    ],
    ids=str,
)
def test_is_the_specification_bit_for_bit(hvd, way, registry, parameters):
    """Whichever way the codes went."""
    register_reduction("median", median)
    config = Config(levels="exponential", **parameters)
    name = f"exponential.{way}.{parameters}"
    for step in range(2):
        everyones = everyone(hvd, 70, 73, seed=step)
        mine = everyones[hvd.rank()]
        result = hvd.allreduce(mine, name=name, compression=exponential(**parameters))
        assert type(result) is torch.Tensor
        assert identical(hvd, result)
        reference = expected(everyones, config, name, step)
        if config.p == "inf":
            assert torch.equal(result, reference)
        else:  # the order in which a backend adds float64 norms is its own
            apart = (result - reference).abs() > 1e-6
            assert apart.float().mean() < 1e-3
