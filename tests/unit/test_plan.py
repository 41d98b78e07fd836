"""A bucket on several ranks, played through in one process."""

import re

import numpy as np
import pytest

from horovod_gqsgd import agreement, reductions, reference
from horovod_gqsgd.agreement import HEADER, JoinedError
from horovod_gqsgd.codecs.exponential import ExponentialCodec
from horovod_gqsgd.codecs.linear import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.plan import Plan

SIZES = [3000, 1500]


def ranks(n, **parameters):
    """A bucket and its arrays for every rank."""
    config = Config(**parameters)
    codec = LinearCodec if config.levels == "linear" else ExponentialCodec
    arrays = [
        [np.random.default_rng([rank, i]).standard_normal(size).astype(np.float32)
         for i, size in enumerate(SIZES)]
        for rank in range(n)
    ]  # fmt: skip
    dtypes = ["float32"] * len(SIZES)
    buckets = [Plan(codec(config, rank, n), "x", SIZES, dtypes, 1.0) for rank in range(n)]
    return buckets, arrays


def written(bucket, arrays, step):
    head, sums = np.empty(bucket.head_size, np.int32), np.empty(bucket.sums_size)
    bucket.write(arrays, head, sums, step)
    return head, sums


@pytest.mark.parametrize("norm", ["inf", 2])
def test_linear_bucket_gives_the_specified_means(norm):
    """The largest step counts, and every tensor has a name of its own in the dither."""
    buckets, arrays = ranks(3, norm=norm)
    sent = [written(b, x, step) for step, (b, x) in enumerate(zip(buckets, arrays, strict=True))]
    head = np.max([head for head, _ in sent], axis=0)
    sums = np.sum([sums for _, sums in sent], axis=0)
    assert agreement.read_header(head) == (True, 2)
    total = np.zeros(buckets[0].length, np.int32)
    for bucket, x in zip(buckets, arrays, strict=True):
        words = np.empty_like(total)
        bucket.encode(x, bucket.read(head, sums), words)
        total += words
    outputs = [np.empty(size, np.float32) for size in SIZES]
    buckets[0].decode(total, buckets[0].read(head, sums), outputs)
    for i, output in enumerate(outputs):
        config = buckets[0].codec.config
        mean = reference.mean([x[i] for x in arrays], config, f"x.{i}", 2)
        np.testing.assert_array_equal(output, mean)


def test_exponential_bucket_misses_a_rank_that_has_joined():
    buckets, arrays = ranks(3, levels="exponential")
    sent = [written(b, x, 0)[0] for b, x in zip(buckets, arrays, strict=True)]
    assert buckets[0].start == HEADER + 3
    assert buckets[0].read(np.max(sent, axis=0), np.empty(0)).dithers[0].step == 0
    with pytest.raises(JoinedError, match="rank 1 has joined"):
        buckets[0].read(np.max([sent[0], sent[2]], axis=0), np.empty(0))


def test_ranks_that_differ_are_described():
    bucket = ranks(2)[0][0]
    other = Plan(bucket.codec, "x", SIZES, ["float64"] * 2, 1.0)
    rows = np.stack([bucket.description(), other.description()])
    assert "dtype is float32 on rank 0; float64 on rank 1" in str(agreement.explain("x", rows))


@pytest.mark.parametrize("odd", ["x" * 500, "é" * 200, "🦉" * 100])
def test_descriptions_have_one_length_whatever_they_hold(monkeypatch, odd):
    """And values too long for it still differ: here the reduction's name, and 200 tensors."""
    monkeypatch.setattr(reductions, "_registry", dict(reductions._registry))
    rows = []
    for name, sizes in ((f"{odd}1", [3000] * 200), (f"{odd}2", [2999, 3001] + [3000] * 198)):
        reductions.register_reduction(name, reductions.exact)
        config = Config(levels="exponential", reduction=name, min_size=10**200, seed=2**32 - 1)
        codec = ExponentialCodec(config, 0, 2)
        bucket = Plan(codec, "x", sizes, ["float16", "float32"] * 100, 1 / 3)
        rows.append(bucket.description())
    assert {row.size for row in rows} == {agreement.DESCRIPTION}
    said = str(agreement.explain("x", np.stack(rows), [4, 7]))
    for field in ("reduction", "elements"):
        assert re.search(rf"{field} is [^.;]+(\.\.\.)? ?[^;]*on rank 4; [^;]+ on rank 7", said)
    assert "600000 in 200 tensors" in said


def test_a_roll_names_the_ranks_of_the_job():
    with pytest.raises(JoinedError, match="ranks 5, 9 have joined"):
        agreement.check_roll(np.array([0, 1, 0], np.int32), "x", [5, 7, 9])
