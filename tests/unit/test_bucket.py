"""A bucket on several ranks, played through in one process."""

import numpy as np
import pytest

from horovod_gqsgd import agreement
from horovod_gqsgd.agreement import HEADER, JoinedError
from horovod_gqsgd.bucket import Bucket
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.config import Config
from tests.parallel import specification

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
    buckets = [Bucket(codec(config, rank, n), "x", SIZES, dtypes, 1.0) for rank in range(n)]
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
        mean = specification.mean([x[i] for x in arrays], config, f"x.{i}", 2)
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
    other = Bucket(bucket.codec, "x", SIZES, ["float64"] * 2, 1.0)
    rows = np.stack([bucket.description(), other.description()])
    assert "dtype is float32 on rank 0; float64 on rank 1" in str(agreement.explain("x", rows))
