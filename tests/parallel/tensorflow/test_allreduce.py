"""``hvd.allreduce`` and ``hvd.grouped_allreduce`` with ``compression=GlobalQSGD``."""

import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow.compression import Compressor

from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import GlobalQSGD, JoinedError, statistics
from tests.parallel.tensorflow.specification import (
    everyone,
    expected,
    flat,
    gradient,
    identical,
    same,
)

FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
#: A function that raises does so itself, or as TensorFlow tells it.
ERRORS = (ValueError, tf.errors.OpError)


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
def test_is_the_specification_bit_for_bit(hvd, traced, parameters):
    """On any backend and at any time: the sum of integers knows no order."""
    config = Config(**parameters)
    compression = GlobalQSGD(**parameters)
    average = traced(lambda x: hvd.allreduce(x, name="spec", compression=compression))
    for step in range(3):
        everyones = everyone(hvd, 70, 73, seed=step)
        result = average(everyones[hvd.rank()])
        assert identical(hvd, result)
        reference = expected(everyones, config, "spec", step)
        if config.p == "inf":
            assert same(result, reference)
        else:  # the order in which a backend adds float64 norms is its own
            np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(0,), (), (3, 5), (1025,), (2, 3, 1001)], ids=str)
def test_every_type_and_shape(hvd, traced, dtype, shape):
    everyones = everyone(hvd, *shape, dtype=dtype)
    average = traced(lambda x: hvd.allreduce(x, name="types", compression=GlobalQSGD))
    result = average(everyones[hvd.rank()])
    assert (result.dtype, result.shape) == (dtype, shape)
    if np.prod(shape) >= 1024:
        assert same(result, expected(everyones, Config(), "types"))
    else:
        mean = tf.reduce_mean(tf.cast(everyones, tf.float64), 0)
        # Horovod multiplies halves by 1/n in half precision
        close = {tf.float16: 2e-2, tf.bfloat16: 2e-2}.get(dtype, 1e-6)
        np.testing.assert_allclose(tf.cast(result, tf.float64), mean, rtol=close, atol=close)


def test_large_tensors_with_threads(hvd, traced):
    everyones = everyone(hvd, 1000, 300)
    before = flat(everyones[hvd.rank()]).copy()
    average = traced(lambda x: hvd.allreduce(x, name="large", compression=GlobalQSGD))
    assert same(average(everyones[hvd.rank()]), expected(everyones, Config(), "large"))
    assert np.array_equal(flat(everyones[hvd.rank()]), before), "the input is not modified"


@pytest.mark.parametrize("levels", ["linear", "exponential"])
def test_small_numbers_are_kept(hvd, traced, levels):
    """TensorFlow's threads flush what is below 2^-126 to zero; the specification does not."""
    compression = GlobalQSGD(levels=levels, **({"base": 2} if levels == "exponential" else {}))
    everyones = [g * 2.0**-90 for g in everyone(hvd, 4000)]
    average = traced(
        lambda x: hvd.allreduce(x, name="tiny", prescale_factor=2.0**-40, compression=compression)
    )
    result = average(everyones[hvd.rank()])
    bits = np.abs(flat(result)).view(np.int32)
    assert ((bits > 0) & (bits < 0x00800000)).any()
    assert same(result, expected(everyones, compression.config, "tiny", factor=2.0**-40))


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_operations_and_factors(hvd, traced, op, factors):
    everyones = everyone(hvd, 4000)
    reduce = traced(
        lambda x: hvd.allreduce(
            x, name="operation", op=getattr(hvd, op), prescale_factor=factors[0],
            postscale_factor=factors[1], compression=GlobalQSGD,
        )
    )  # fmt: skip
    factor = factors[0] * factors[1] * (hvd.size() if op == "Sum" else 1)
    reference = expected(everyones, Config(), "operation", factor=factor)
    assert same(reduce(everyones[hvd.rank()]), reference)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_other_operations_go_uncompressed(hvd, op):
    everyones = tf.stack(everyone(hvd, 2000))
    result = hvd.allreduce(
        everyones[hvd.rank()], name=f"other.{op}", op=getattr(hvd, op), compression=GlobalQSGD
    )
    reduce = {"Min": tf.reduce_min, "Max": tf.reduce_max, "Product": tf.reduce_prod}[op]
    np.testing.assert_allclose(result, reduce(everyones, 0), rtol=1e-6)


@pytest.mark.np(2)
def test_adasum_goes_uncompressed(hvd):
    if not hvd.mpi_enabled():
        pytest.skip("Horovod has Adasum with MPI or NCCL, not with Gloo")
    mine = gradient(hvd.rank(), 2000)
    plain = hvd.allreduce(mine, op=hvd.Adasum)
    assert same(hvd.allreduce(mine, op=hvd.Adasum, compression=GlobalQSGD), plain)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_integers_go_uncompressed(hvd, dtype):
    mine = tf.fill([2000], tf.cast(3 + hvd.rank(), dtype))
    result = hvd.allreduce(mine, op=hvd.Sum, compression=GlobalQSGD)
    assert (result.numpy() == sum(3 + rank for rank in range(hvd.size()))).all()
    assert result.dtype == dtype


@pytest.mark.parametrize("grouped", [False, True])
def test_reducescatter_goes_uncompressed(hvd, traced, grouped):
    def scatter(x):
        if grouped:
            return hvd.grouped_reducescatter([x], op=hvd.Sum, compression=GlobalQSGD)[0]
        return hvd.reducescatter(x, op=hvd.Sum, compression=GlobalQSGD)

    result = traced(scatter)(gradient(hvd.rank(), 12, 300))
    share = 12 // hvd.size()
    total = tf.add_n(everyone(hvd, 12, 300))[hvd.rank() * share : (hvd.rank() + 1) * share]
    np.testing.assert_allclose(result, total, rtol=1e-5, atol=1e-5)


def test_min_size(hvd, traced):
    for size, parameters, compressed in ((1023, {}, 0), (1024, {}, 1), (3, {"min_size": 0}, 1)):
        before = statistics.tensors
        compression = GlobalQSGD(**parameters)
        traced(lambda x, c=compression: hvd.allreduce(x, compression=c))(tf.ones(size))
        assert statistics.tensors - before == compressed


def test_a_size_known_only_at_run_time(hvd):
    @tf.function(input_signature=[tf.TensorSpec([None, 50])])
    def average(x):
        return hvd.allreduce(x, name="dynamic", compression=GlobalQSGD)

    for step, rows in enumerate((40, 60, 40)):
        everyones = everyone(hvd, rows, 50)
        result = average(everyones[hvd.rank()])
        assert same(result, expected(everyones, Config(), "dynamic", step))
    before = statistics.tensors
    np.testing.assert_allclose(average(tf.ones([2, 50])), 1)
    assert statistics.tensors == before, "too small"


def test_constants_in_a_graph_are_exchanged_at_every_step(hvd):
    """TensorFlow computes what it can before the first step; this it must not."""

    @tf.function
    def average():
        mine = tf.fill([2048], 1.0) * tf.constant([1.0, 0.3] * 1024)
        return hvd.allreduce(mine, name="constant", compression=GlobalQSGD(bits=5))

    everyones = [tf.constant([1.0, 0.3] * 1024)] * hvd.size()
    for step in range(3):
        assert same(average(), expected(everyones, Config(bits=5), "constant", step))


def test_calls_of_one_name_in_a_graph_count_their_own_steps(hvd):
    """With a common counter, the dither would depend on whether one is done before another."""

    @tf.function
    def average(xs):
        results = []
        for scope, x in zip(("one", "two", "two"), xs, strict=True):
            # one after the other, as they might run also without that
            with tf.name_scope(scope), tf.control_dependencies(results):
                x = tf.identity(x)
                results.append(hvd.allreduce(x, name="scoped", compression=GlobalQSGD))
        return results

    everyones = [everyone(hvd, size) for size in (200_000, 2000, 3000)]
    for step in range(3):
        results = average([each[hvd.rank()] for each in everyones])
        for result, each in zip(results, everyones, strict=True):
            assert same(result, expected(each, Config(), "scoped", step))


def test_unbiased_and_within_the_bound(hvd):
    """Variance below Δ²/(4n), and the mean over 200 steps within 4.5 standard errors of that."""
    n, steps = hvd.size(), 200
    everyones = everyone(hvd, 2048)
    truth = np.mean([g.numpy().astype(np.float64) for g in everyones], axis=0)
    average = tf.function(lambda x: hvd.allreduce(x, name="unbiased", compression=GlobalQSGD))
    mine = everyones[hvd.rank()]
    samples = np.stack([average(mine).numpy().astype(np.float64) for _ in range(steps)])
    top = np.max(np.abs(everyones), axis=0).reshape(-1, 1024).max(1).repeat(1024)
    gap = top.astype(np.float64) / ((2**8 - 1) // (2 * n))
    assert ((samples - truth) ** 2).mean() <= (gap**2).mean() / (4 * n)
    assert (np.abs(samples.mean(0) - truth) <= 4.5 * gap / np.sqrt(4 * n * steps)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_element_on_one_rank_makes_its_block_nan_everywhere(hvd, traced, bad, dtype):
    average = traced(lambda x: hvd.allreduce(x, name="bad", compression=GlobalQSGD))
    mine = gradient(hvd.rank(), 4096).numpy()
    if hvd.rank() == 0:
        mine[1500] = bad
    result = tf.cast(average(tf.cast(mine, dtype)), tf.float32).numpy()
    assert np.isnan(result[1024:2048]).all()
    assert np.isfinite(result[:1024]).all()
    assert np.isfinite(result[2048:]).all()
    result = average(gradient(hvd.rank(), 4096, dtype=dtype))
    assert np.isfinite(tf.cast(result, tf.float32)).all()


def test_float64_beyond_float32_is_nan(hvd):
    mine = tf.fill([2048], tf.constant(1e300 if hvd.rank() == 0 else 1.0, tf.float64))
    assert np.isnan(hvd.allreduce(mine, compression=GlobalQSGD)).all()


def test_zeros_and_the_maximum_are_exact(hvd, traced):
    average = traced(lambda x: hvd.allreduce(x, name="exact", compression=GlobalQSGD))
    for value in (0.0, 1.2345e-7, -3e30, 2.0**-100):
        mine = tf.fill([3000], value)
        assert same(average(mine), mine if abs(value) > 2.0**-96 else tf.zeros(3000))


def test_group_of_everything(hvd, traced):
    shapes = [(3000,), (7,), (40, 50), (), (2, 1024)]
    everyones = [everyone(hvd, *shape, seed=i) for i, shape in enumerate(shapes)]
    everyones[4] = [tf.cast(g, tf.bfloat16) for g in everyones[4]]
    average = traced(lambda xs: hvd.grouped_allreduce(xs, name="group", compression=GlobalQSGD))
    results = average([group[hvd.rank()] for group in everyones])
    compressed = 0
    for given, result in zip(everyones, results, strict=True):
        if np.prod(given[0].shape) >= 1024:
            assert same(result, expected(given, Config(), f"group.{compressed}"))
            compressed += 1
        else:
            np.testing.assert_allclose(result, tf.reduce_mean(given, 0), rtol=1e-5, atol=1e-6)


def test_group_of_sizes_known_only_at_run_time(hvd):
    """They are compressed whatever their size: which is below ``min_size`` nobody can tell."""

    @tf.function(input_signature=[[tf.TensorSpec([None]), tf.TensorSpec([2000])]])
    def average(xs):
        return hvd.grouped_allreduce(xs, name="late", compression=GlobalQSGD)

    for step, size in enumerate((3000, 5, 3000)):
        groups = [everyone(hvd, size), everyone(hvd, 2000, seed=1)]
        results = average([everyones[hvd.rank()] for everyones in groups])
        for i, (everyones, result) in enumerate(zip(groups, results, strict=True)):
            assert same(result, expected(everyones, Config(), f"late.{i}", step))


def test_group_of_small_tensors(hvd, traced):
    average = traced(lambda xs: hvd.grouped_allreduce(xs, compression=GlobalQSGD))
    first, second = average([tf.fill([3], float(hvd.rank())), tf.fill([5], 2.0)])
    np.testing.assert_allclose(first, (hvd.size() - 1) / 2)
    np.testing.assert_allclose(second, 2.0)


@pytest.mark.parametrize("grouped", [False, True])
def test_gradient_of_an_allreduce(hvd, traced, grouped):
    """The backward pass is the same allreduce with the same compressor."""

    def backward(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            if grouped:
                [mean] = hvd.grouped_allreduce([x], compression=GlobalQSGD)
            else:
                mean = hvd.allreduce(x, compression=GlobalQSGD)
            total = tf.reduce_sum(mean * weight)
        return mean, tape.gradient(total, x)

    before = statistics.tensors
    weights = everyone(hvd, 2048, seed=5)
    _mean, result = traced(backward)(gradient(hvd.rank(), 2048), weights[hvd.rank()])
    assert statistics.tensors - before == 2
    assert identical(hvd, result)
    top = np.max(np.abs(weights))
    assert np.abs(result - tf.reduce_mean(weights, 0)).max() <= top / 40


def test_variables(hvd, traced):
    variable = tf.Variable(gradient(hvd.rank(), 2000))
    result = traced(lambda: hvd.allreduce(variable, name="v", compression=GlobalQSGD))()
    assert same(result, expected(everyone(hvd, 2000), Config(), "v"))


@pytest.mark.np(3)
def test_process_set(hvd, traced):
    some = hvd.add_process_set([0, 2])
    try:
        if some.included():
            members = [gradient(rank, 3000) for rank in (0, 2)]
            average = traced(
                lambda x: hvd.allreduce(x, name="set", process_set=some, compression=GlobalQSGD)
            )
            for step in range(2):
                result = average(gradient(hvd.rank(), 3000))
                assert same(result, expected(members, Config(), "set", step))
    finally:
        hvd.remove_process_set(some)


def test_join(hvd):
    """A rank that has run out of data contributes zeros, and the mean is over all ranks.

    Exponential levels need all ranks, and say so. One test for both: of several joins in one
    process Horovod's later ones may return before all ranks have joined.
    """
    exponential = GlobalQSGD(levels="exponential")
    for _ in range(2):
        np.testing.assert_array_equal(hvd.allreduce(tf.ones(2048), compression=GlobalQSGD), 1)
        hvd.allreduce(tf.ones(2048), compression=exponential)
    if hvd.rank() != 0:
        result = hvd.allreduce(tf.ones(2048), compression=GlobalQSGD)
        np.testing.assert_allclose(result, 1 - 1 / hvd.size(), atol=0.02)
        with pytest.raises(JoinedError, match=r'rank 0 has joined, .* use levels="linear"'):
            hvd.allreduce(tf.ones(2048), compression=exponential)
    hvd.join()


@pytest.mark.parametrize("case", ["bits", "seed", "rounding", "block", "dtype", "op", "shape"])
def test_ranks_that_disagree_are_told_what_differs(hvd, traced, case):
    odd = hvd.rank() == 0
    parameters = {
        "bits": {"bits": 6 if odd else 8},
        "seed": {"seed": int(odd)},
        "rounding": {"rounding": "independent" if odd else "correlated"},
        "block": {"block": 128 if odd else 1024},
    }.get(case, {})
    mine = tf.ones(2048 if case != "shape" or odd else 2040)
    if case == "dtype" and odd:
        mine = tf.cast(mine, tf.float64)
    op = hvd.Sum if case == "op" and odd else hvd.Average
    reduce = traced(lambda x: hvd.allreduce(x, op=op, compression=GlobalQSGD(**parameters)))
    words = {"op": "factor is", "shape": "elements is", "block": "Mismatched"}
    with pytest.raises(ERRORS, match=words.get(case, f"{case} is")) as caught:
        reduce(mine)
    if case != "block":
        assert "DisagreementError" in f"{caught.typename}: {caught.value}"
    clean = hvd.allreduce(tf.ones(2048), compression=GlobalQSGD)
    assert same(clean, tf.ones(2048))


@pytest.mark.parametrize("case", ["norm", "levels"])
def test_ranks_that_disagree_by_coincidence_of_length(hvd, traced, case):
    """Their first vectors are of one length, and in a graph what follows is of another kind."""
    n, odd = hvd.size(), hvd.rank() == 0
    # header and one norm for every 128 elements; or header and a roll of n ranks
    other = {"norm": {"levels": "exponential", "norm": 2}, "levels": {"levels": "exponential"}}
    parameters = other[case] if odd else {"block": 128}
    size = 128 * n if case == "norm" else 128 * (n + 1)
    compression = GlobalQSGD(min_size=0, **parameters)
    with pytest.raises(ERRORS, match=r"Mismatched|levels is"):
        traced(lambda x: hvd.allreduce(x, compression=compression))(tf.ones(size))
    assert same(hvd.allreduce(tf.ones(9)), tf.ones(9))


@pytest.mark.parametrize("norm", ["inf", 2])
def test_many_tensors_that_disagree_end_everywhere(hvd, norm):
    """A step that fails leaves no rank waiting for tensors that others have not started."""
    compression = GlobalQSGD(bits=8 if hvd.rank() else 10, norm=norm)

    @tf.function
    def step(xs):
        return [hvd.allreduce(x, compression=compression) for x in xs]

    with pytest.raises(tf.errors.InvalidArgumentError, match="bits is 10 on rank 0; 8 on rank"):
        step([gradient(hvd.rank(), 2000 + i) for i in range(30)])
    assert same(hvd.allreduce(tf.ones(9)), tf.ones(9))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("case", ["none", "min_size"])
def test_a_rank_that_does_not_compress(hvd, traced, case, grouped):
    other = hvd.Compression.none if case == "none" else GlobalQSGD(min_size=10**6)
    options = {"name": f"refuse.{case}", "compression": GlobalQSGD if hvd.rank() else other}
    reduce = hvd.grouped_allreduce if grouped else hvd.allreduce
    mine = [tf.ones(3), tf.ones(2048), tf.ones(4096)] if grouped else tf.ones(2048)
    with pytest.raises(ERRORS, match="Mismatched data types"):
        traced(lambda x: reduce(x, **options))(mine)
    assert same(hvd.allreduce(tf.ones(9)), tf.ones(9))


def test_a_group_whose_blocks_differ(hvd, traced):
    """Horovod tells of one member what became of it: no rank may take it for the others'."""
    compression = GlobalQSGD(block=128 if hvd.rank() else 1024)
    reduce = traced(lambda x: hvd.grouped_allreduce(x, name="blocks", compression=compression))
    with pytest.raises(ERRORS, match="Mismatched"):
        reduce([tf.ones(3), tf.ones(2048), tf.ones(4096)])
    assert same(hvd.allreduce(tf.ones(9)), tf.ones(9))


def test_too_few_bits_for_the_world(hvd, traced):
    if hvd.size() < 4:
        compression = GlobalQSGD(bits=3, min_size=10)
        traced(lambda x: hvd.allreduce(x, compression=compression))(tf.ones(20))
    else:
        with pytest.raises(ValueError, match="bits=3 cannot hold"):
            hvd.allreduce(tf.ones(2000), compression=GlobalQSGD(bits=3))


def test_xla_is_refused_with_the_fix(hvd):
    @tf.function(jit_compile=True)
    def average(x):
        return hvd.allreduce(x, compression=GlobalQSGD)

    with pytest.raises(ValueError, match="leave jit_compile=True out of"):
        average(tf.ones(2048))


def test_is_a_compressor_of_horovods(hvd):
    assert issubclass(GlobalQSGD, Compressor)
    assert isinstance(GlobalQSGD(bits=6), Compressor)


def test_compressors_are_keys_of_horovods_cache(hvd):
    assert GlobalQSGD(bits=6) == GlobalQSGD(bits=6) != GlobalQSGD()
    assert len({GlobalQSGD(bits=6), GlobalQSGD(bits=6), GlobalQSGD()}) == 2
    assert eval(repr(GlobalQSGD(norm=2))) == GlobalQSGD(norm=2)
