"""Exchanges on a GPU, simulated or real, return the bits of the specification."""

import numpy as np
import pytest
import torch

from horovod_gqsgd import shards
from tests.parallel.torch.specification import expected, gradient


def check(hvd, gpu, tensor_of, config, name, step=0, **kwargs):
    """``tensor_of(rank)`` exchanged equals what the specification gives."""
    from horovod_gqsgd.torch import GlobalQSGD

    compression = GlobalQSGD(**config)
    mine = tensor_of(hvd.rank()).to(gpu)
    result = hvd.allreduce(mine, name=name, compression=compression, **kwargs)
    everyone = [tensor_of(rank) for rank in range(hvd.size())]
    factor = hvd.size() if kwargs.get("op") == hvd.Sum else 1.0
    wanted = expected(everyone, compression.config, name, step, factor)
    assert (result.dtype, result.device) == (wanted.dtype, mine.device)
    assert torch.equal(result.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_linear(hvd, gpu, places, dtype):
    for step in range(2):
        check(hvd, gpu, lambda rank: gradient(rank, 4100, dtype=dtype), {}, f"l.{dtype}", step)


def test_five_launches_and_one_event(hvd, gpu, simulated):
    check(hvd, gpu, lambda rank: gradient(rank, 1500), {}, "gpu launches")
    assert simulated[-1].kernels == ["header", "maximum", "prepare", "encode", "decode"]
    assert len(simulated[-1].awaited) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"bits": 5, "rounding": "independent"},
        {"block": None, "seed": 3},
        {"norm": 2},
        {"norm": ("inf", 1)},
        {"levels": "exponential"},
        {"levels": "exponential", "bits": 3, "reduction": "pairwise"},
    ],
    ids=str,
)
def test_configurations(hvd, gpu, config):
    check(hvd, gpu, lambda rank: gradient(rank, 3, 500), config, f"gpu {config}", op=hvd.Sum)


@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_shards(hvd, gpu, monkeypatch, reduction):
    """As with large tensors: every rank reduces a part, and all gather the results."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 0)
    config = {"levels": "exponential", "bits": 4, "reduction": reduction}
    check(hvd, gpu, lambda rank: gradient(rank, 1030), config, f"gpu shards {reduction}")


def test_bad_elements(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    for bad, levels in ((float("nan"), "linear"), (float("inf"), "exponential")):
        tensor = gradient(hvd.rank(), 2100)
        if hvd.rank() == hvd.size() - 1:
            tensor[1500] = bad
        compression = GlobalQSGD(levels=levels)
        mean = hvd.allreduce(tensor.to(gpu), name=f"gpu {bad}", compression=compression)
        assert torch.isnan(mean).nonzero().flatten().tolist() == list(range(1024, 2048))


def test_layouts(hvd, gpu):
    check(hvd, gpu, lambda rank: gradient(rank, 60, 40).t(), {}, "gpu strided")


def test_small_tensors(hvd, gpu, simulated):
    from horovod_gqsgd.torch import GlobalQSGD

    small = hvd.allreduce(torch.ones(10).to(gpu), name="gpu small", compression=GlobalQSGD)
    assert torch.equal(small.cpu(), torch.ones(10))
    assert simulated == []  # straight to Horovod


def test_group(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    shapes = [(1500,), (10,), (2, 1100)]
    for levels in ("linear", "exponential"):
        compression = GlobalQSGD(levels=levels)
        tensors = [gradient(hvd.rank(), *shape).to(gpu) for shape in shapes]
        results = hvd.grouped_allreduce(tensors, name=f"gpu {levels}", compression=compression)
        for i, index in enumerate((0, 2)):  # the i-th compressed one
            everyone = [gradient(rank, *shapes[index]) for rank in range(hvd.size())]
            wanted = expected(everyone, compression.config, f"gpu {levels}.{i}")
            assert torch.equal(results[index].cpu(), wanted)


def test_words_leave_before_the_header_is_on_the_host(hvd, gpu, simulated, monkeypatch):
    from horovod_gqsgd.torch import GlobalQSGD
    from horovod_gqsgd.transports import horovod_torch as native
    from tests.parallel.cuda.simulated import Event

    begun, seen = [], []
    allreduce, query = native.allreduce, Event.query

    def begin(tensor, name, *arguments):
        begun.append(name)
        return allreduce(tensor, name, *arguments)

    def look(event):
        seen.append([*begun])
        return query(event)

    monkeypatch.setattr(native, "allreduce", begin)
    monkeypatch.setattr(Event, "query", look)
    hvd.allreduce(gradient(hvd.rank(), 1500), name="gpu early", compression=GlobalQSGD)
    assert seen[0] == ["gpu early", "gpu early.gq.words"]


@pytest.mark.parametrize("levels", ["linear", "exponential"])
def test_disagreement(hvd, gpu, levels):
    from horovod_gqsgd.torch import DisagreementError, GlobalQSGD

    compression = GlobalQSGD(levels=levels, bits=8 if hvd.rank() == 0 else 6)
    with pytest.raises(DisagreementError, match="bits is 8 on rank 0; 6 on rank"):
        hvd.allreduce(torch.ones(1100).to(gpu), name=f"gpu {levels}?", compression=compression)


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


def median_of_tensors(codes, levels, dither):
    words = dither.cpu().numpy().view(np.uint32)
    return torch.from_numpy(median(codes.cpu().numpy(), levels, words)).to(codes.device)


def test_registered_reductions(hvd, gpu):
    from horovod_gqsgd.torch import register_reduction

    register_reduction("gpu median", median, cuda=median_of_tensors)
    register_reduction("host median", median)
    config = {"levels": "exponential", "bits": 5, "reduction": "gpu median"}
    check(hvd, gpu, lambda rank: gradient(rank, 1030), config, "gpu median")
    config["reduction"] = "host median"
    with pytest.warns(UserWarning, match="'host median' on the host: .* without cuda="):
        check(hvd, gpu, lambda rank: gradient(rank, 1030), config, "host median")


@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_codes_that_do_not_fit_their_bits_are_refused(hvd, gpu, monkeypatch, way):
    """Packed, they would change their neighbours; a rank without any has what the way gives it."""
    from horovod_gqsgd.torch import GlobalQSGD, ReductionError, register_reduction

    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**62 if way == "gather" else 0)

    def spilling(codes, levels, dither):
        result = median_of_tensors(codes, levels, dither)
        if fail and hvd.rank() == 0:
            result[-1] = 32
        return result

    register_reduction(f"spilling {way}", median, cuda=spilling)
    config = {"levels": "exponential", "bits": 5, "reduction": f"spilling {way}"}
    shapes, name = [(1030,), (1100,)], f"gpu spilling {way}"
    said = "on another rank"
    if hvd.rank() == 0:
        said = "returned the code 32, which bits=5 do not hold: return codes from 0 to 31"
    for step, fail in enumerate((False, True, False)):
        mine = [gradient(hvd.rank(), *shape).to(gpu) for shape in shapes]
        options = {"name": name, "compression": GlobalQSGD(**config)}
        if fail and (way == "scatter" or hvd.rank() == 0):
            with pytest.raises(ReductionError, match=said):
                hvd.grouped_allreduce(mine, **options)
            continue
        results = hvd.grouped_allreduce(mine, **options)
        for i, (shape, result) in enumerate(zip(shapes, results, strict=True)):
            everyone = [gradient(rank, *shape) for rank in range(hvd.size())]
            wanted = expected(everyone, options["compression"].config, f"{name}.{i}", step)
            assert torch.equal(result.cpu(), wanted)


def test_without_kernels_tensors_go_through_the_host(hvd, gpu, simulated, monkeypatch):
    from tests.parallel.cuda.simulated import Simulated

    monkeypatch.setattr(Simulated, "runs_kernels", lambda self: False)
    check(hvd, gpu, lambda rank: gradient(rank, 2000), {}, "gpu fallback")
    assert simulated[-1].kernels == []


def test_training(hvd, gpu):
    from horovod_gqsgd.torch import GlobalQSGD

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 20).to(gpu)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=GlobalQSGD,
    )
    inputs = gradient(hvd.rank(), 16, 64, seed=5).to(gpu)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    weights = hvd.allgather(model.weight.detach().cpu()[None], name="gpu weights")
    assert all(torch.equal(weights[0], other) for other in weights[1:])
