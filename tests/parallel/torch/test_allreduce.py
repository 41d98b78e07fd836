"""``hvd.allreduce`` and ``hvd.grouped_allreduce`` with ``compression=GlobalQSGD``."""

import weakref

import numpy as np
import pytest
import torch

from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import GlobalQSGD, statistics
from tests.parallel.torch.specification import expected, gradient

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def everyone(hvd, *shape, **options):
    return [gradient(rank, *shape, **options) for rank in range(hvd.size())]


def identical(hvd, tensor):
    """Whether all ranks hold the same bits."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    rows = hvd.allgather(flat[None])
    return all(torch.equal(row, flat) for row in rows)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"bits": 3},
        {"bits": 5, "block": None},
        {"bits": 16, "block": 128},
        {"rounding": "independent", "seed": 7},
        {"norm": 2},
        {"norm": ("inf", 1), "bits": 10},
        {"norm": (1, "inf")},
    ],
    ids=str,
)
def test_is_the_specification_bit_for_bit(hvd, parameters):
    """On any backend and at any time: the sum of integers knows no order."""
    config = Config(**parameters)
    if 2**config.bits - 1 < 2 * hvd.size():
        pytest.skip(f"{config.bits} bits do not hold {hvd.size()} workers")
    for step in range(3):
        everyones = everyone(hvd, 70, 73, seed=step)
        result = hvd.allreduce(
            everyones[hvd.rank()], name=f"spec.{parameters}", compression=GlobalQSGD(**parameters)
        )
        assert type(result) is torch.Tensor
        assert identical(hvd, result)
        reference = expected(everyones, config, f"spec.{parameters}", step)
        if config.p == "inf":
            assert torch.equal(result, reference)
        else:  # the order in which a backend adds float64 norms is its own
            torch.testing.assert_close(result, reference, rtol=1e-6, atol=1e-6)


def test_input_is_not_modified(hvd):
    mine = gradient(hvd.rank(), 5000)
    before = mine.clone()
    hvd.allreduce(mine, name="unmodified", compression=GlobalQSGD)
    assert torch.equal(mine, before)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 5), (1025,), (2, 3, 1001)])
def test_every_type_and_shape(hvd, dtype, shape):
    everyones = everyone(hvd, *shape, dtype=dtype)
    name = f"types.{dtype}.{shape}"
    result = hvd.allreduce(everyones[hvd.rank()], name=name, compression=GlobalQSGD)
    assert (result.dtype, result.shape) == (dtype, torch.Size(shape))
    assert identical(hvd, result) if result.numel() else True
    if result.numel() >= 1024:
        assert torch.equal(result, expected(everyones, Config(), name))
    else:
        mean = torch.stack([g.double() for g in everyones]).mean(0)
        # Horovod multiplies halves by 1/n in half precision
        close = {torch.float16: 2e-2, torch.bfloat16: 1e-2}.get(dtype, 1e-6)
        torch.testing.assert_close(result.double(), mean, rtol=close, atol=close)


@pytest.mark.parametrize("size", [600, 5000])
def test_layouts(hvd, size):
    """Row-major order counts, whatever the strides: also when they differ between ranks."""
    everyones = everyone(hvd, 5, size // 5)
    mine = everyones[hvd.rank()]
    strided = mine.t().contiguous().t() if hvd.rank() % 2 else mine
    assert strided.is_contiguous() != (hvd.rank() % 2 == 1)
    result = hvd.allreduce(strided, name=f"strided.{size}", compression=GlobalQSGD)
    reference = torch.stack(everyones).mean(0)
    if size >= 1024:
        reference = expected(everyones, Config(), f"strided.{size}")
    torch.testing.assert_close(result, reference, rtol=0, atol=1e-6)


def test_channels_last(hvd):
    everyones = everyone(hvd, 4, 8, 9, 10)
    mine = everyones[hvd.rank()].to(memory_format=torch.channels_last)
    result = hvd.allreduce(mine, name="channels_last", compression=GlobalQSGD)
    assert torch.equal(result, expected(everyones, Config(), "channels_last"))


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_operations_and_factors(hvd, op, factors):
    everyones = everyone(hvd, 4000)
    name = f"operation.{op}.{factors}"
    result = hvd.allreduce(
        everyones[hvd.rank()], name=name, op=getattr(hvd, op), prescale_factor=factors[0],
        postscale_factor=factors[1], compression=GlobalQSGD,
    )  # fmt: skip
    factor = factors[0] * factors[1] * (hvd.size() if op == "Sum" else 1)
    assert torch.equal(result, expected(everyones, Config(), name, factor=factor))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_other_operations_go_uncompressed(hvd, op):
    everyones = torch.stack(everyone(hvd, 2000))
    result = hvd.allreduce(
        everyones[hvd.rank()], name=f"other.{op}", op=getattr(hvd, op), compression=GlobalQSGD
    )
    reduce = {"Min": torch.amin, "Max": torch.amax, "Product": torch.prod}[op]
    torch.testing.assert_close(result, reduce(everyones, 0))


@pytest.mark.np(2)
def test_adasum_goes_uncompressed(hvd):
    if not hvd.mpi_enabled():
        pytest.skip("Horovod has Adasum with MPI or NCCL, not with Gloo")
    mine = gradient(hvd.rank(), 2000)
    plain = hvd.allreduce(mine, name="adasum.plain", op=hvd.Adasum)
    ours = hvd.allreduce(mine, name="adasum.ours", op=hvd.Adasum, compression=GlobalQSGD)
    assert torch.equal(plain, ours)


def test_what_changes_under_a_name_counts(hvd):
    """What was prepared for a name serves the next call only if nothing but the numbers differs."""
    name = "changing"
    for step, (size, config, op) in enumerate(
        [
            (5000, Config(), hvd.Average),
            (5000, Config(), hvd.Average),
            (3000, Config(), hvd.Average),
            (3000, Config(bits=6), hvd.Average),
            (3000, Config(levels="exponential"), hvd.Average),
            (3000, Config(), hvd.Sum),
        ]
    ):
        compression = GlobalQSGD(**config.to_dict())
        result = hvd.allreduce(
            gradient(hvd.rank(), size), name=name, compression=compression, op=op
        )
        inputs = [gradient(rank, size) for rank in range(hvd.size())]
        factor = hvd.size() if op == hvd.Sum else 1
        assert torch.equal(result, expected(inputs, config, name, step, factor)), step


def test_nobody_holds_on_to_a_gradient(hvd):
    for levels in ("linear", "exponential"):
        memory = np.ones(5000, np.float32)
        alive = weakref.ref(memory)
        compression = GlobalQSGD(levels=levels)
        hvd.allreduce_(compression.compress(torch.from_numpy(memory))[0], name=f"held.{levels}")
        del memory
        assert alive() is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_go_uncompressed(hvd, dtype):
    mine = torch.full((2000,), 3 + hvd.rank(), dtype=dtype)
    result = hvd.allreduce(mine, name=f"{dtype}", op=hvd.Sum, compression=GlobalQSGD)
    assert (result == sum(3 + rank for rank in range(hvd.size()))).all()
    assert result.dtype == dtype


def test_min_size(hvd):
    for size, compressed in ((1023, 0), (1024, 1)):
        before = statistics.tensors
        hvd.allreduce(gradient(hvd.rank(), size), name=f"min.{size}", compression=GlobalQSGD)
        assert statistics.tensors - before == compressed
    before = statistics.tensors
    tiny = GlobalQSGD(min_size=0)
    hvd.allreduce(torch.ones(3), name="min.0", compression=tiny)
    assert statistics.tensors - before == 1


def test_unbiased_and_within_the_bound(hvd):
    """Mean over 300 steps within 4.5 standard errors; variance below Δ²/(4n)."""
    n, steps = hvd.size(), 300
    everyones = everyone(hvd, 2048)
    truth = torch.stack(everyones).double().mean(0)
    samples = torch.stack(
        [
            hvd.allreduce(everyones[hvd.rank()], name="unbiased", compression=GlobalQSGD)
            for _ in range(steps)
        ]
    ).double()
    spread = samples.std(0) / np.sqrt(steps)
    assert ((samples.mean(0) - truth).abs() <= 4.5 * spread + 1e-5).all()
    norm = torch.stack(everyones).abs().amax(0).view(-1, 1024).amax(1).repeat_interleave(1024)
    gap = norm.double() / ((2**8 - 1) // (2 * n))
    assert ((samples - truth).square().mean(0) <= gap**2 / (4 * n) * 1.6).all()
    assert (samples - truth).square().mean() <= (gap**2).mean() / (4 * n)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_element_on_one_rank_makes_its_block_nan_everywhere(hvd, bad):
    mine = gradient(hvd.rank(), 4096)
    if hvd.rank() == 0:
        mine[1500] = bad
    result = hvd.allreduce(mine, name=f"bad.{bad}", compression=GlobalQSGD)
    assert result[1024:2048].isnan().all()
    assert result[:1024].isfinite().all()
    assert result[2048:].isfinite().all()
    clean = hvd.allreduce(gradient(hvd.rank(), 4096), name=f"bad.{bad}", compression=GlobalQSGD)
    assert clean.isfinite().all()


def test_float64_beyond_float32_is_nan(hvd):
    mine = torch.full((2048,), 1e300 if hvd.rank() == 0 else 1.0, dtype=torch.float64)
    assert hvd.allreduce(mine, name="huge", compression=GlobalQSGD).isnan().all()


def test_zeros_and_the_maximum_are_exact(hvd):
    for value in (0.0, 1.2345e-7, -3e30, 2.0**-100):
        mine = torch.full((3000,), value)
        result = hvd.allreduce(mine, name=f"exact.{value}", compression=GlobalQSGD)
        assert torch.equal(result, mine if abs(value) > 2.0**-96 else torch.zeros(3000))


def test_group_of_everything(hvd):
    shapes = [(3000,), (7,), (40, 50), (), (2, 1024)]
    everyones = [everyone(hvd, *shape, seed=i) for i, shape in enumerate(shapes)]
    everyones[4] = [g.bfloat16() for g in everyones[4]]
    mine = [group[hvd.rank()] for group in everyones]
    results = hvd.grouped_allreduce(mine, name="group", compression=GlobalQSGD)
    compressed = 0
    for given, result in zip(everyones, results, strict=True):
        assert (result.dtype, result.shape) == (given[0].dtype, given[0].shape)
        if result.numel() >= 1024:
            assert torch.equal(result, expected(given, Config(), f"group.{compressed}"))
            compressed += 1
        else:
            torch.testing.assert_close(result, torch.stack(given).mean(0))


@pytest.mark.parametrize("first", ["integer", "float"])
def test_group_with_integers(hvd, first):
    """Horovod looks at the first member alone; every other goes its way all the same."""
    floats = [everyone(hvd, 2000), everyone(hvd, 3, 1000, dtype=torch.bfloat16)]
    small = everyone(hvd, 5, dtype=torch.bfloat16)
    whole = [[torch.full((4,), 3 + rank, dtype=dtype) for rank in range(hvd.size())]
             for dtype in (torch.int64, torch.int32)]  # fmt: skip
    order = [whole[0], *floats, small, whole[1]]
    if first == "float":
        order.insert(0, order.pop(1))
    name, before = f"integers.{first}", statistics.tensors
    mine = [group[hvd.rank()] for group in order]
    results = hvd.grouped_allreduce(mine, name=name, op=hvd.Sum, compression=GlobalQSGD)
    assert statistics.tensors - before == 2
    compressed = 0
    for given, result in zip(order, results, strict=True):
        assert (result.dtype, result.shape) == (given[0].dtype, given[0].shape)
        if result.numel() >= 1024:
            wanted = expected(given, Config(), f"{name}.{compressed}", factor=hvd.size())
            assert torch.equal(result, wanted)
            compressed += 1
        else:
            torch.testing.assert_close(result, torch.stack(given).sum(0).to(result.dtype))


def test_group_of_small_tensors(hvd):
    mine = [torch.full((3,), float(hvd.rank())), torch.full((5,), 2.0)]
    first, second = hvd.grouped_allreduce(mine, name="small_group", compression=GlobalQSGD)
    torch.testing.assert_close(first, torch.full((3,), (hvd.size() - 1) / 2))
    torch.testing.assert_close(second, mine[1])


@pytest.mark.parametrize("grouped", [False, True])
def test_autograd(hvd, grouped):
    """The backward pass is the same allreduce with the same compressor."""
    mine = gradient(hvd.rank(), 2048).requires_grad_()
    before = statistics.tensors
    if grouped:
        (result,) = hvd.grouped_allreduce([mine], name="autograd.g", compression=GlobalQSGD)
    else:
        result = hvd.allreduce(mine, name="autograd", compression=GlobalQSGD)
    weight = gradient(hvd.rank(), 2048, seed=5)
    (result * weight).sum().backward()
    assert statistics.tensors - before == 2
    weights = everyone(hvd, 2048, seed=5)
    norm = torch.stack(weights).abs().max()
    assert (mine.grad - torch.stack(weights).mean(0)).abs().max() <= norm / 40
    assert identical(hvd, mine.grad)


def test_async_in_place_with_poll(hvd):
    mine = gradient(hvd.rank(), 5000)
    marked, ctx = GlobalQSGD.compress(mine)
    handle = hvd.allreduce_async_(marked, name="in_place")
    while not hvd.poll(handle):
        pass
    result = GlobalQSGD.decompress(hvd.synchronize(handle), ctx)
    assert result.data_ptr() == mine.data_ptr()
    assert torch.equal(mine, expected(everyone(hvd, 5000), Config(), "in_place"))


def test_unnamed_operations_of_the_user_are_left_alone(hvd):
    """Ranks take Horovod's handles at different times; unnamed operations must still pair up."""
    total = hvd.size() * (hvd.size() - 1) / 2
    for _ in range(5):
        handles = []
        for i in range(4 if hvd.rank() % 2 else 3):
            marked, ctx = GlobalQSGD.compress(gradient(hvd.rank(), 3000))
            if i < 3:
                handles.append((hvd.allreduce_async_(marked, name=f"mixed.{i}"), ctx))
            hvd.poll(handles[0][0])
        ones = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
        again = hvd.allreduce(gradient(hvd.rank(), 2000), compression=GlobalQSGD)
        rows = hvd.allgather(torch.tensor([hvd.rank()]))
        assert ones.item() == total
        assert rows.tolist() == list(range(hvd.size()))
        assert again.isfinite().all()
        for handle, _ctx in handles:
            hvd.synchronize(handle)


def test_order_does_not_matter(hvd):
    """Ranks that start the same tensors in different order get the specified result."""
    names = [f"order.{i}" for i in range(6)]
    everyones = {name: everyone(hvd, 3000, seed=i) for i, name in enumerate(names)}
    mine = names[hvd.rank() :] + names[: hvd.rank()]
    handles = {}
    for name in mine:
        marked, _ctx = GlobalQSGD.compress(everyones[name][hvd.rank()].clone())
        handles[name] = hvd.allreduce_async_(marked, name=name)
    for name in reversed(names):
        assert torch.equal(
            hvd.synchronize(handles[name]).as_subclass(torch.Tensor),
            expected(everyones[name], Config(), name),
        )


@pytest.mark.np(3)
def test_process_set(hvd):
    some = hvd.add_process_set([0, hvd.size() - 1])
    try:
        if some.included():
            members = [gradient(rank, 3000) for rank in (0, hvd.size() - 1)]
            result = hvd.allreduce(
                gradient(hvd.rank(), 3000), name="set", process_set=some, compression=GlobalQSGD
            )
            assert torch.equal(result, expected(members, Config(), "set"))
    finally:
        hvd.remove_process_set(some)


@pytest.mark.np(4, 5)
def test_too_few_bits_for_the_world(hvd):
    """Refused on every rank, with what would do, before anything is sent."""
    with pytest.raises(ValueError, match=f"bits=3 cannot hold {hvd.size()} workers.* 4"):
        hvd.allreduce(torch.ones(2000), name="bits", compression=GlobalQSGD(bits=3))
    enough = hvd.allreduce(torch.ones(2000), name="bits", compression=GlobalQSGD(bits=4))
    assert torch.equal(enough, torch.ones(2000))


@pytest.mark.parametrize("grouped", [False, True])
def test_join(hvd, grouped):
    """A rank that has run out of data contributes zeros, and the mean is over all ranks."""
    batches = 3 if hvd.rank() == 0 else 1
    for batch in range(batches):
        options = {"name": f"join.{grouped}", "compression": GlobalQSGD}
        if grouped:
            mine = [torch.ones(2048), torch.ones(4096), torch.ones(3)]
            result, *_others = hvd.grouped_allreduce(mine, **options)
        else:
            result = hvd.allreduce(torch.ones(2048), **options)
        present = 1 if batch else hvd.size()
        assert torch.allclose(result, torch.full((2048,), present / hvd.size()), atol=0.02)
    hvd.join()


@pytest.mark.parametrize(
    "case", ["bits", "seed", "rounding", "min_size", "block", "dtype", "op", "shape"]
)
def test_ranks_that_disagree_are_told_what_differs(hvd, case):
    odd = hvd.rank() == 0
    parameters = {
        "bits": {"bits": 6 if odd else 8},
        "seed": {"seed": int(odd)},
        "rounding": {"rounding": "independent" if odd else "correlated"},
        "min_size": {"min_size": 512 if odd else 1024},  # both compress this tensor
        "block": {"block": 128 if odd else 1024},
    }.get(case, {})
    mine = torch.ones(2048 if case != "shape" or odd else 2040)
    if case == "dtype" and odd:
        mine = mine.double()
    op = hvd.Sum if case == "op" and odd else hvd.Average
    with pytest.raises(ValueError, match="GlobalQSGD: the ranks") as caught:
        hvd.allreduce(mine, name=f"disagree.{case}", op=op, compression=GlobalQSGD(**parameters))
    words = {"op": "factor is", "shape": "elements is", "block": "another block"}
    assert words.get(case, f"{case} is") in str(caught.value)
    clean = hvd.allreduce(torch.ones(2048), name=f"agree.{case}", compression=GlobalQSGD)
    assert torch.equal(clean, torch.ones(2048))


def test_ranks_with_different_versions_are_told(hvd, monkeypatch):
    if hvd.rank() == 0:
        monkeypatch.setattr("horovod_gqsgd.config.__version__", "0.0.0")
        monkeypatch.setattr("horovod_gqsgd.agreement.__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"version is 0\.0\.0 on rank 0; "):
        hvd.allreduce(torch.ones(2048), name="versions", compression=GlobalQSGD)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("case", ["none", "min_size"])
def test_a_rank_that_does_not_compress_is_an_error_everywhere(hvd, case, grouped):
    other = hvd.Compression.none if case == "none" else GlobalQSGD(min_size=10**6)
    options = {"name": f"refuse.{case}", "compression": GlobalQSGD if hvd.rank() else other}
    reduce = hvd.grouped_allreduce if grouped else hvd.allreduce
    mine = [torch.ones(3), torch.ones(2048), torch.ones(4096)] if grouped else torch.ones(2048)
    with pytest.raises((ValueError, hvd.mpi_ops.HorovodInternalError), match="Mismatched"):
        reduce(mine, **options)
    assert hvd.allreduce(torch.ones(5), name=f"after.{case}").sum() == 5
