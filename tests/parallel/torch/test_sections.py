"""Large tensors and groups travel in sections; the result is that of the whole."""

import pytest
import torch

from horovod_gqsgd import sections, shards
from horovod_gqsgd.torch import GlobalQSGD, statistics
from horovod_gqsgd.torch.message import HostMessage
from tests.parallel.torch.specification import expected
from tests.parallel.torch.test_allreduce import everyone, identical

LARGE = 500_001


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Sections as short as they can be."""
    monkeypatch.setattr(HostMessage, "most", sections.ELEMENTS // 18)


@pytest.fixture(params=["linear", "whole tensor", "gather", "scatter"])
def compression(request, monkeypatch):
    monkeypatch.setattr(shards, "GATHER_LIMIT", 0 if request.param == "scatter" else 2**62)
    linear = {"linear": {"bits": 8}, "whole tensor": {"bits": 6, "block": None}}
    return GlobalQSGD(**linear.get(request.param, {"levels": "exponential", "bits": 3}))


def test_large_tensor(hvd, compression):
    name = f"sections.{shards.GATHER_LIMIT}.{compression}"
    statistics.reset()
    for step in range(2):
        everyones = everyone(hvd, LARGE, seed=step)
        result = hvd.allreduce(everyones[hvd.rank()], name=name, compression=compression)
        assert identical(hvd, result)
        assert torch.equal(result, expected(everyones, compression.config, name, step))
    if compression.config.levels == "linear":
        assert statistics.sends == 2 * 4
    elif shards.GATHER_LIMIT:
        assert (statistics.sends, statistics.alltoalls) == (2, 0)
    else:
        assert (statistics.sends, statistics.alltoalls) == (2 * 8, 2 * 4)


def test_group(hvd, compression):
    """Sections that begin and end inside of tensors, and a tensor that has another layout."""
    name = f"sections.group.{shards.GATHER_LIMIT}.{compression}"
    shapes = [(200_000,), (3000,), (5,), (400, 1000), (7000,)]
    everyones = [everyone(hvd, *shape, seed=i) for i, shape in enumerate(shapes)]
    mine = [group[hvd.rank()].clone() for group in everyones]
    mine[3] = mine[3].t().contiguous().t()
    results = hvd.grouped_allreduce(mine, name=name, compression=compression)
    for i, at in enumerate((0, 1, 3, 4)):
        reference = expected(everyones[at], compression.config, f"{name}.{i}")
        assert torch.equal(results[at], reference)
