"""The registry of codecs, and what every codec in it must keep."""

import numpy as np
import pytest

from horovod_gqsgd import reference
from horovod_gqsgd.codecs import codecs, register_codec
from horovod_gqsgd.codecs.linear import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.shards import GATHER_LIMIT


def test_both_schemes_of_the_paper_are_there_and_a_name_is_taken_once():
    assert {"linear", "exponential"} <= {*codecs()}
    with pytest.raises(ValueError, match="levels='linear' is taken by LinearCodec"):
        register_codec(LinearCodec)


@pytest.mark.parametrize("levels", [*codecs()])
def test_rounds_are_those_that_exchanges_know(levels):
    codec = Config(levels=levels).codec(Config(levels=levels), 0, 4)
    assert len(codec.ways()) in (1, 2)
    for rounds in codec.ways():
        assert {each.kind for each in rounds} <= {"sum", "scatter", "gather"}
        assert all(each.kind != "gather" or each.reduce for each in rounds[:1])
        assert all(each.reduce for each in rounds if each.kind == "scatter")
        assert codec.needs_all or all(each.kind == "sum" for each in rounds), "or joined ranks hang"


def test_small_messages_of_codes_are_gathered():
    config = Config(levels="exponential")
    codec = config.codec(config, 1, 4)
    kinds = [[each.kind for each in codec.rounds(GATHER_LIMIT // 4 + more)] for more in (0, 8)]
    assert kinds == [["gather"], ["scatter", "gather"]]


@pytest.mark.parametrize("levels", [*codecs()])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_codec_does_what_the_reference_says(levels, dtype):
    """Encode on every rank, the rounds by hand, decode: bit for bit, sections included."""
    config, n, size = Config(levels=levels, bits=6), 3, 3001
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(size).astype(dtype) for _ in range(n)]
    norm = np.stack([_norms(config, x, i, n) for i, x in enumerate(arrays)]).max(axis=0)
    dither = Dither(config.seed, 0, "x")
    rows: list[np.ndarray] = []
    for rank, x in enumerate(arrays):
        codec = config.codec(config, rank, n)
        rows.append(np.zeros(codec.length(size), codec.dtype))
        codec.encode(x, codec.join_norms(norm), rows[-1], dither)
    payload = np.empty_like(rows[0])
    if codec.rounds(payload.size)[0].reduce:
        codec.reduce(np.stack(rows), payload, [size], 0, [dither])
    else:
        np.sum(rows, axis=0, out=payload)
    out = np.empty(size, np.float32)
    codec.decode(payload, codec.join_norms(norm), out, 1.0)
    assert (out == reference.mean(arrays, config, "x")).all()


def _norms(config, x, rank, n):
    codec = config.codec(config, rank, n)
    out = np.zeros(codec.norm_count(x.size), np.int32)
    codec.local_norms(x, out)
    return out
