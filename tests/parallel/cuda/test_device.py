"""Exchanges on a simulated GPU return the bits of the specification."""

import numpy as np
import pytest
import torch

from horovod_gqsgd import shards
from tests.parallel.torch.specification import expected, gradient


def check(hvd, tensor_of, config, name, step=0, **kwargs):
    """``tensor_of(rank)`` exchanged equals what the specification gives."""
    from horovod_gqsgd.torch import GlobalQSGD

    compression = GlobalQSGD(**config)
    result = hvd.allreduce(tensor_of(hvd.rank()), name=name, compression=compression, **kwargs)
    everyone = [tensor_of(rank) for rank in range(hvd.size())]
    factor = hvd.size() if kwargs.get("op") == hvd.Sum else 1.0
    wanted = expected(everyone, compression.config, name, step, factor)
    assert result.dtype == wanted.dtype
    assert torch.equal(result, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_linear(hvd, gpu, dtype):
    name = f"linear.{dtype}"
    for step in range(2):
        check(hvd, lambda rank: gradient(rank, 4500, dtype=dtype), {}, name, step)
    assert gpu[-1].kernels == ["header", "maximum", "prepare", "encode", "decode"]
    assert len(gpu[-1].awaited) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"bits": 5, "rounding": "independent"},
        {"block": None, "seed": 3},
        {"norm": 2},
        {"norm": (1, "inf")},
        {"norm": ("inf", 1)},
        {"levels": "exponential"},
        {"levels": "exponential", "bits": 3, "reduction": "pairwise"},
        {"levels": "exponential", "bits": 6, "norm": 2},
    ],
    ids=str,
)
def test_configurations(hvd, gpu, config):
    check(hvd, lambda rank: gradient(rank, 3, 700), config, f"gpu {config}", op=hvd.Sum)


@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_shards(hvd, gpu, monkeypatch, reduction):
    """As with large tensors: every rank reduces a part, and all gather the results."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 0)
    config = {"levels": "exponential", "bits": 4, "reduction": reduction}
    check(hvd, lambda rank: gradient(rank, 2049), config, f"gpu shards {reduction}")


def test_bad_elements(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    for bad, levels in ((float("nan"), "linear"), (float("inf"), "exponential")):
        tensor = gradient(hvd.rank(), 3000)
        if hvd.rank() == hvd.size() - 1:
            tensor[1500] = bad
        mean = hvd.allreduce(tensor, name=f"gpu {bad}", compression=GlobalQSGD(levels=levels))
        assert torch.isnan(mean).nonzero().flatten().tolist() == list(range(1024, 2048))


def test_layouts_and_small_tensors(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    strided = gradient(hvd.rank(), 60, 40).t()
    mean = hvd.allreduce(strided, name="gpu strided", compression=GlobalQSGD)
    everyone = [gradient(rank, 60, 40).t() for rank in range(hvd.size())]
    assert torch.equal(mean, expected(everyone, GlobalQSGD().config, "gpu strided"))
    small = hvd.allreduce(torch.ones(10), name="gpu small", compression=GlobalQSGD)
    assert torch.equal(small, torch.ones(10))
    assert gpu[-1].kernels == []


def test_group(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    for levels in ("linear", "exponential"):
        compression = GlobalQSGD(levels=levels)
        shapes = [(1500,), (10,), (2, 1100)]
        tensors = [gradient(hvd.rank(), *shape) for shape in shapes]
        results = hvd.grouped_allreduce(tensors, name=f"gpu {levels}", compression=compression)
        for i, index in enumerate((0, 2)):  # the i-th compressed one
            everyone = [gradient(rank, *shapes[index]) for rank in range(hvd.size())]
            wanted = expected(everyone, compression.config, f"gpu {levels}.{i}")
            assert torch.equal(results[index], wanted)


def test_words_leave_before_the_header_is_on_the_host(hvd, gpu, monkeypatch):
    from horovod_gqsgd.torch import GlobalQSGD, native, statistics
    from tests.parallel.cuda import simulated

    begun, seen = [], []
    allreduce, query = native.allreduce, simulated.Event.query

    def begin(tensor, name, *arguments):
        begun.append(name)
        return allreduce(tensor, name, *arguments)

    def look(event):
        seen.append([*begun])
        return query(event)

    monkeypatch.setattr(native, "allreduce", begin)
    monkeypatch.setattr(simulated.Event, "query", look)
    statistics.reset()
    hvd.allreduce(gradient(hvd.rank(), 2000), name="gpu early", compression=GlobalQSGD)
    assert seen[0] == ["gpu early", "gpu early.gq.words"]
    assert statistics.sends == 1


def test_disagreement(hvd, gpu):
    from horovod_gqsgd.torch import DisagreementError, GlobalQSGD

    bits = 8 if hvd.rank() == 0 else 6
    with pytest.raises(DisagreementError, match="bits is 8 on rank 0; 6 on rank"):
        hvd.allreduce(torch.ones(2000), name="gpu differ", compression=GlobalQSGD(bits=bits))


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


def median_of_tensors(codes, levels, dither):
    return torch.from_numpy(median(codes.numpy(), levels, dither.numpy().view(np.uint32)))


def test_registered_reductions(hvd, gpu):
    from horovod_gqsgd.torch import register_reduction

    register_reduction("gpu median", median, cuda=median_of_tensors)
    register_reduction("host median", median)
    config = {"levels": "exponential", "bits": 5, "reduction": "gpu median"}
    check(hvd, lambda rank: gradient(rank, 1030), config, "gpu median")
    assert gpu[-1].kernels.count("unpack") == hvd.size()
    config["reduction"] = "host median"
    with pytest.warns(UserWarning, match="'host median' on the host: .* without cuda="):
        check(hvd, lambda rank: gradient(rank, 1030), config, "host median")


def test_without_kernels_tensors_go_through_the_host(hvd, gpu, monkeypatch):
    from tests.parallel.cuda.simulated import Simulated

    monkeypatch.setattr(Simulated, "runs_kernels", lambda self: False)
    check(hvd, lambda rank: gradient(rank, 2000), {}, "gpu fallback")
    assert gpu[-1].kernels == []


def test_training(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 40)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=GlobalQSGD,
    )
    inputs = gradient(hvd.rank(), 16, 64, seed=5)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    weights = hvd.allgather(model.weight.detach()[None], name="gpu weights")
    assert all(torch.equal(weights[0], other) for other in weights[1:])
