"""``levels="exponential"`` through Horovod: codes, a registered reduction, two ways to carry it."""

import contextlib

import numpy as np
import pytest
import torch

from horovod_gqsgd import reductions, sections, shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import (
    DisagreementError,
    GlobalQSGD,
    JoinedError,
    ReductionError,
    register_reduction,
    statistics,
)
from horovod_gqsgd.torch.message import HostMessage
from horovod_gqsgd.transports import horovod_torch as native
from tests.parallel.torch.specification import expected, gradient
from tests.parallel.torch.test_allreduce import FLOATS, everyone, identical
from tests.parallel.torch.training import (
    Model,
    batch,
    close_to_mean,
    loss,
    replicas_identical,
    train_with_a_pause,
    true_gradients,
)


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


def test_both_ways_give_the_same_bits(hvd, monkeypatch):
    """At sizes where shards are uneven, empty, or end inside a group of eight codes."""
    for size in (1, 7, 8, 9, 17, 1000, 1025, 70_001):
        results = []
        for step, limit in enumerate((2**62, 0)):
            monkeypatch.setattr(shards, "GATHER_LIMIT", limit)
            mine = gradient(hvd.rank(), size)
            name = f"ways.{size}.{limit}"
            compression = exponential(bits=5, min_size=0)
            results.append(hvd.allreduce(mine, name=name, compression=compression))
            reference = expected(everyone(hvd, size), compression.config, name)
            assert torch.equal(results[step], reference), (size, limit)


def test_large_tensors(hvd):
    """Above the limit by itself, with threads; of 8 bits in two sections."""
    everyones = everyone(hvd, 1100, 1000)
    before = statistics.alltoalls
    for bits in (4, 8):
        name = f"large.{bits}"
        mine = everyones[hvd.rank()]
        result = hvd.allreduce(mine, name=name, compression=exponential(bits=bits))
        config = Config(levels="exponential", bits=bits)
        assert torch.equal(result, expected(everyones, config, name))
    assert statistics.alltoalls - before == 1 + 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(0,), (), (5,), (1025,), (2, 3, 1001)])
def test_every_type_and_shape(hvd, way, dtype, shape):
    everyones = everyone(hvd, *shape, dtype=dtype)
    name = f"exponential.types.{way}.{dtype}.{shape}"
    result = hvd.allreduce(everyones[hvd.rank()], name=name, compression=exponential())
    assert (result.dtype, result.shape) == (dtype, torch.Size(shape))
    if result.numel() >= 1024:
        assert torch.equal(result, expected(everyones, Config(levels="exponential"), name))


def test_layout_input_and_factors(hvd, way):
    everyones = everyone(hvd, 5, 1000)
    mine = everyones[hvd.rank()]
    strided = mine.t().contiguous().t() if hvd.rank() % 2 else mine
    name = f"exponential.layout.{way}"
    result = hvd.allreduce(
        strided, name=name, op=hvd.Sum, prescale_factor=0.5, compression=exponential()
    )
    assert torch.equal(mine, gradient(hvd.rank(), 5, 1000))
    config = Config(levels="exponential")
    assert torch.equal(result, expected(everyones, config, name, factor=0.5 * hvd.size()))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_other_operations_go_uncompressed(hvd, op):
    before = statistics.tensors
    mine, options = torch.full((2000,), 2.0), {"op": getattr(hvd, op)}
    result = hvd.allreduce(mine, name=f"e.{op}", compression=exponential(), **options)
    assert (result == (2.0 ** hvd.size() if op == "Product" else 2.0)).all()
    assert statistics.tensors == before


@pytest.mark.np(2)
def test_adasum_goes_uncompressed(hvd):
    if not hvd.mpi_enabled():
        pytest.skip("Horovod has Adasum with MPI or NCCL, not with Gloo")
    mine = gradient(hvd.rank(), 2000)
    plain = hvd.allreduce(mine, name="e.adasum.plain", op=hvd.Adasum)
    ours = hvd.allreduce(mine, name="e.adasum", op=hvd.Adasum, compression=exponential())
    assert torch.equal(plain, ours)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_element_on_one_rank_makes_its_block_nan_everywhere(hvd, way, bad):
    mine = gradient(hvd.rank(), 4096)
    if hvd.rank() == 0:
        mine[1500] = bad
    result = hvd.allreduce(mine, name=f"e.bad.{way}.{bad}", compression=exponential(bits=4))
    assert result[1024:2048].isnan().all()
    assert result[:1024].isfinite().all()
    assert result[2048:].isfinite().all()


@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_zeros_and_the_maximum_are_exact(hvd, way, reduction):
    for value in (0.0, 1.2345e-7, -3e30, 2.0**-100):
        mine = torch.full((3000,), value)
        name = f"e.exact.{way}.{reduction}.{value}"
        result = hvd.allreduce(mine, name=name, compression=exponential(reduction=reduction))
        assert torch.equal(result, mine if abs(value) > 2.0**-96 else torch.zeros(3000))


def test_unbiased(hvd):
    """Sixteen values, 512 times at each of 25 steps: means within 4.5 standard errors."""
    values = everyone(hvd, 16)
    truth = torch.stack(values).double().mean(0)
    mine, compression = values[hvd.rank()].repeat(512), exponential(bits=5)
    results = [hvd.allreduce(mine, name="e.unbiased", compression=compression) for _ in range(25)]
    samples = torch.cat(results).double().view(-1, 16)
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - truth).abs() <= 4.5 * error + 1e-4).all()


def test_group_is_one_bucket(hvd, way, monkeypatch):
    """Small tensors in it go uncompressed, the others in one exchange of codes."""
    calls = count_native_calls(monkeypatch)
    shapes = [(3000,), (7,), (40, 50), (), (2, 1024), (4001,)]
    everyones = [everyone(hvd, *shape, seed=i) for i, shape in enumerate(shapes)]
    everyones[4] = [g.bfloat16() for g in everyones[4]]
    mine = [group[hvd.rank()] for group in everyones]
    name, config = f"e.group.{way}", Config(levels="exponential", bits=6)
    results = hvd.grouped_allreduce(mine, name=name, compression=exponential(bits=6))
    compressed = 0
    for given, result in zip(everyones, results, strict=True):
        assert (result.dtype, result.shape) == (given[0].dtype, given[0].shape)
        if result.numel() >= 1024:
            assert torch.equal(result, expected(given, config, f"{name}.{compressed}"))
            compressed += 1
        else:
            torch.testing.assert_close(result, torch.stack(given).mean(0))
    assert len(calls["allgather"]) == 1
    assert len(calls["alltoall"]) == (way == "scatter")


@pytest.mark.np(3)
def test_process_set(hvd, way):
    some, name = hvd.add_process_set([0, 2]), f"e.set.{way}"
    try:
        if some.included():
            members = [gradient(rank, 3000) for rank in (0, 2)]
            result = hvd.allreduce(
                gradient(hvd.rank(), 3000), name=name, process_set=some,
                compression=exponential(bits=4),
            )  # fmt: skip
            config = Config(levels="exponential", bits=4)
            assert torch.equal(result, expected(members, config, name))
    finally:
        hvd.remove_process_set(some)


def test_autograd(hvd):
    mine = gradient(hvd.rank(), 2048).requires_grad_()
    result = hvd.allreduce(mine, name="e.autograd", compression=exponential())
    before = statistics.code_bytes
    (result * gradient(hvd.rank(), 2048, seed=5)).sum().backward()
    assert statistics.code_bytes > before
    assert identical(hvd, mine.grad)


def distributed(hvd, model, **options):
    options.setdefault("compression", exponential(bits=5))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Counters of steps belong to names, and other tests want theirs to begin at 0.
    named = [(f"e.{name}", p) for name, p in model.named_parameters()]
    return hvd.DistributedOptimizer(plain, named_parameters=named, **options)


@pytest.mark.parametrize("bits", [8, 3])
def test_training_keeps_replicas_identical_and_learns(hvd, way, bits):
    model = Model()
    optimizer = distributed(hvd, model, compression=exponential(bits=bits))
    before = loss(model, 0).item()
    for step in range(20):
        optimizer.zero_grad()
        loss(model, hvd.rank(), step % 3).backward()
        optimizer.step()
    assert replicas_identical(hvd, model)
    assert loss(model, 0).item() < 0.5 * before


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_of_an_optimizer(hvd, way, groups):
    model, compression = Model(), exponential()
    optimizer = distributed(hvd, model, groups=groups, compression=compression)
    for step in range(2):
        truth = true_gradients(model, hvd.size(), step)
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        optimizer.step()
        close_to_mean(model, truth, compression=compression)
    assert replicas_identical(hvd, model)


def test_ranks_that_differ_in_everything_they_may(hvd, way):
    """Hook order, unused parameters, and unnamed operations between backward and step."""
    model = Model()
    optimizer = distributed(hvd, model)
    for step in range(6):
        optimizer.zero_grad()
        hidden = model.first(batch(hvd.rank(), step)).relu()
        sides = ["left", "right"] if (hvd.rank() + step) % 2 else ["right", "left"]
        if (hvd.rank() + step) % 3 == 0:
            sides.pop()  # unused here: sent in synchronize
        for side in sides:
            layer = getattr(model, side)
            out = layer(hidden).square().mean()
            out.backward(inputs=[*layer.parameters()], retain_graph=True)
        unnamed = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
        assert unnamed.item() == hvd.size() * (hvd.size() - 1) / 2
        assert len(hvd.allgather(torch.ones(1))) == hvd.size()
        optimizer.step()
    assert replicas_identical(hvd, model)


def test_codes_leave_during_the_backward_pass(hvd, way):
    train_with_a_pause(hvd, distributed, sends=1 if way == "gather" else 2)


def count_native_calls(monkeypatch):
    """Bytes handed to Horovod's native functions for uint8 tensors, call by call."""
    calls = {"allgather": [], "alltoall": []}
    for operation, sizes in calls.items():
        name = f"horovod_torch_{operation}_async_torch_ByteTensor"
        original = native.original[name]

        def call(tensor, *arguments, original=original, sizes=sizes):
            sizes.append(tensor.nbytes)
            return original(tensor, *arguments)

        monkeypatch.setitem(native.original, name, call)
    return calls


@pytest.mark.parametrize("bits", [8, 4, 3])
def test_traffic_is_that_of_a_ring_allreduce(hvd, way, bits, monkeypatch):
    """What a rank sends: within 3 % of 2·(n − 1)/n·d·bits/8 by alltoall, (n − 1)·d·bits/8 else."""
    n, size = hvd.size(), 100_003
    calls = count_native_calls(monkeypatch)
    statistics.reset()
    mine = gradient(hvd.rank(), size)
    hvd.allreduce(mine, name=f"e.wire.{way}.{bits}", compression=exponential(bits=bits))
    packed = size * bits / 8
    handed = sum(calls["alltoall"] + calls["allgather"])
    assert handed == statistics.code_bytes
    norms = 4 * (3 + n + -(-size // 1024))
    assert statistics.norm_bytes == norms
    sent = statistics.sent_bytes - 2 * (n - 1) / n * norms
    if way == "scatter":
        assert handed == pytest.approx(packed * (1 + 1 / n), rel=0.03)
        assert sent == pytest.approx(2 * (n - 1) / n * packed, rel=0.03)
        assert statistics.ratio == pytest.approx(32 / (bits + 0.03), rel=0.03)
    else:
        assert sent == pytest.approx((n - 1) * packed, rel=0.03)


def resnet50():
    """The shapes of ResNet-50's 161 parameters."""
    convolutions, width = [(64, 3, 7, 7)], 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions += [(planes, width, 1, 1), (planes, planes, 3, 3)]
            convolutions += [(4 * planes, planes, 1, 1)]
            if block == 0:
                convolutions += [(4 * planes, width, 1, 1)]
            width = 4 * planes
    normalisations = [(shape[0],) for shape in convolutions for _ in range(2)]
    return [*convolutions, *normalisations, (1000, 2048), (1000,)]


#: Alltoalls of a step on so many ranks, as docs/reductions.md states them.
STATED = {2: 42, 3: 53, 4: 57, 8: 59, 64: 77}


def test_alltoalls_are_those_of_the_limit():
    """On the codes of all ranks together; the largest tensors have sections."""
    sizes = [int(np.prod(shape)) for shape in resnet50()]
    for n, stated in STATED.items():
        scattered = [s for s in sizes if not shards.gathers(8 * shards.group_count(s), n)]
        most = sections.code_elements(8)
        assert sum(len(sections.cut([size], int, most)) for size in scattered) == stated


@pytest.mark.limit(120)
def test_alltoalls_of_a_step_of_resnet50(hvd, monkeypatch):
    shapes = resnet50()
    assert (len(shapes), sum(int(np.prod(shape)) for shape in shapes)) == (161, 25_557_032)
    calls = count_native_calls(monkeypatch)
    compression, handles = exponential(), []
    for i, shape in enumerate(shapes):
        marked, _ctx = compression.compress(torch.full(shape, float(hvd.rank() + 1)))
        handles.append(hvd.allreduce_async_(marked, name=f"resnet50.{i}"))
    for handle in handles:
        hvd.synchronize(handle)
    assert len(calls["alltoall"]) == STATED[hvd.size()]


@pytest.mark.parametrize("levels", ["linear", "exponential"])
def test_join_lets_exchanges_under_way_end(hvd, way, levels):
    """Started, never waited for: the others still get what was sent."""
    name, compression = f"e.join.{way}.{levels}", GlobalQSGD(levels=levels)
    everyones = everyone(hvd, 3000)
    marked, _ctx = compression.compress(everyones[hvd.rank()].clone())
    handle = hvd.allreduce_async_(marked, name=name)
    if hvd.rank() == 0:
        hvd.join()
    result = hvd.synchronize(handle).as_subclass(torch.Tensor)
    if hvd.rank() != 0:
        hvd.join()
    assert torch.equal(result, expected(everyones, compression.config, name))


@pytest.mark.parametrize("steps", [0, 3])
def test_a_joined_rank_is_an_error_on_the_others(hvd, way, steps):
    """Also when Horovod has the collectives in its response cache and would not refuse them."""
    name = f"e.joined.{way}.{steps}"
    mine = gradient(hvd.rank(), 3000)
    for _ in range(steps):
        hvd.allreduce(mine, name=name, compression=exponential())
    if hvd.rank() != 0:
        with pytest.raises(JoinedError, match=r'rank 0 has joined, .* use levels="linear"'):
            hvd.allreduce(mine, name=name, compression=exponential())
    hvd.join()
    result = hvd.allreduce(mine, name=name, compression=exponential())
    assert identical(hvd, result)


def mean(codes, levels, dither):
    return levels.encode(levels.decode(codes).mean(axis=0), dither)


@pytest.mark.parametrize("case", ["function", "version", "reduction", "bits", "base", "levels"])
def test_ranks_that_disagree_are_told_what_differs(hvd, registry, case):
    odd = hvd.rank() == 0
    function = mean if case == "function" and odd else median
    register_reduction("centre", function, version=2 if case == "version" and odd else 1)
    parameters = {"reduction": "pairwise" if case == "reduction" and odd else "centre"}
    if case in ("bits", "base"):
        parameters |= {"bits": 7 if odd else 8} if case == "bits" else {"base": 2 if odd else None}
    compression = exponential(**parameters) if case != "levels" or odd else GlobalQSGD
    said = {
        "function": r"reduction is centre=\S*mean@1 on rank 0; centre=\S*median@1 on rank",
        "version": r"reduction is centre=\S*median@2 on rank 0; centre=\S*median@1 on rank",
        "levels": "other levels",
    }.get(case, f"{case} is")
    with pytest.raises(DisagreementError, match=said):
        hvd.allreduce(torch.ones(2048), name=f"e.disagree.{case}", compression=compression)
    assert hvd.allreduce(torch.ones(5), name=f"e.after.{case}").sum() == 5


@pytest.mark.parametrize("size", [4000, 500_001])
def test_a_reduction_that_fails_on_one_rank_is_an_error_everywhere(
    hvd, registry, monkeypatch, size
):
    """Whole or in sections; nothing of the failed exchange stays under way."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 0)
    monkeypatch.setattr(HostMessage, "most", sections.ELEMENTS // 18)

    def fragile(codes, levels, dither):
        if hvd.rank() == 0 and fail:
            raise KeyError("lost")
        return median(codes, levels, dither)

    register_reduction("fragile", fragile)
    mine, compression = torch.ones(size), exponential(reduction="fragile")
    for fail in (False, True, True, False):
        said = "KeyError: 'lost'" if hvd.rank() == 0 else "on another rank"
        told = pytest.raises(ReductionError, match=said) if fail else contextlib.nullcontext()
        with told:
            hvd.allreduce(mine, name=f"fragile.{size}", compression=compression)
    after = hvd.allreduce(mine, name=f"fragile.after.{size}", compression=GlobalQSGD)
    assert torch.equal(after, mine)


def test_a_gathered_group_fails_where_the_reduction_does(hvd, registry, monkeypatch):
    """Every rank reduces for itself: the others have their result, and all go on together."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**62)

    def fragile(codes, levels, dither):
        if hvd.rank() == 0 and fail:
            raise KeyError("lost")
        return median(codes, levels, dither)

    register_reduction("fragile", fragile)
    mine = [torch.ones(2000), torch.ones(3), torch.ones(3000)]
    options = {"name": "fragile.group", "compression": exponential(reduction="fragile")}
    for fail in (False, True, True, False):
        told = contextlib.nullcontext()
        if fail and hvd.rank() == 0:
            told = pytest.raises(ReductionError, match="KeyError: 'lost'")
        with told:
            results = hvd.grouped_allreduce(mine, **options)
            assert all(torch.equal(*pair) for pair in zip(mine, results, strict=True))
    assert hvd.allreduce(torch.ones(5), name="fragile.group.after").sum() == 5
