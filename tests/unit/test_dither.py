import itertools

import numpy as np
import pytest

from horovod_gqsgd.dither import SHARED, Dither, finalise, fnv1a64, hash32, philox4x32, place

# Random123's kat_vectors for philox4x32-10
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


@pytest.mark.parametrize(
    ("name", "digest"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("ü", None)]
)
def test_fnv_known_answers(name, digest):
    assert digest is None or fnv1a64(name) == digest
    assert 0 <= fnv1a64(name) < 2**64


def test_finaliser_known_answers():
    # murmur3's fmix32 of 0, 1, 2 and 0xffffffff
    words = finalise(np.array([0, 1, 2, 0xFFFFFFFF], np.uint32))
    assert words.tolist() == [0, 0x514E28B7, 0x30F4C306, 0x81F16F39]


def test_every_ingredient_changes_the_words():
    base = {"seed": 1, "step": 2, "name": "weight", "rank": 3, "n": 4, "start": 0}
    changes = {"seed": 2, "step": 3, "name": "bias", "rank": 2, "start": 1 << 32}

    def words(seed, step, name, rank, n, start):
        return Dither(seed, step, name).independent(rank, n, start, 64)

    for parameter, value in changes.items():
        equal = words(**base) == words(**{**base, parameter: value})
        assert equal.sum() <= 1, parameter


def test_one_key_permutes_all_words():
    for high in range(0, 1 << 16, 4096):
        index = np.arange(high << 16, (high << 16) + 65_536, dtype=np.uint64)
        assert np.unique(hash32(index, 0xDEADBEEF, 0x12345678)).size == index.size


def chi_square(counts: np.ndarray) -> float:
    """Normalised deviation of counts from equal ones: standard normal for random counts."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


STREAMS = [Dither(seed, step, "w").stream(0, 0, 1 << 16) for seed, step in [(0, 0), (0, 1), (7, 0)]]


@pytest.mark.parametrize("shift", [24, 20, 16, 8, 0])
@pytest.mark.parametrize("stream", range(3))
def test_bits_are_uniform(stream, shift):
    digits = STREAMS[stream] >> np.uint32(shift) & np.uint32(255)
    assert abs(chi_square(np.bincount(digits, minlength=256))) < 4.5


@pytest.mark.parametrize("lag", [1, 2, 3, 8, 255, 1023, 1024, 2048, 4096, 8192])
def test_lags_are_uncorrelated(lag):
    for stream in STREAMS:
        u = stream / 2.0**32 - 0.5
        z = (u[lag:] * u[:-lag]).mean() * 12 * np.sqrt(u.size - lag)
        assert abs(z) < 4.5


@pytest.mark.parametrize("lag", [1, 2, 3, 8, 255, 1023, 1024])
def test_pairs_are_uniform(lag):
    # Not at 4,096: murmur3's finaliser mixes bit 12 a little less (7 % on 4-bit pairs). That
    # relates two elements of one rank, which neither biases a rounding nor adds to an error.
    for stream in STREAMS:
        pairs = (stream[lag:] >> np.uint32(28)) << np.uint32(4) | stream[:-lag] >> np.uint32(28)
        assert abs(chi_square(np.bincount(pairs, minlength=256))) < 4.5


def test_keys_give_unrelated_streams():
    """Neighbouring seeds, steps, ranks and names, at every pair of them."""
    streams = [
        Dither(seed, step, name).stream(rank, 0, 1 << 14)
        for seed, step, name, rank in itertools.product((0, 1), (0, 1), ("w", "x"), (0, 1, SHARED))
    ]
    centred = [stream / 2.0**32 - 0.5 for stream in streams]
    for (a, u), (b, v) in itertools.combinations(enumerate(centred), 2):
        z = (u * v).mean() * 12 * np.sqrt(u.size)
        assert abs(z) < 4.5
        pairs = (streams[a] >> np.uint32(28)) << np.uint32(4) | streams[b] >> np.uint32(28)
        assert abs(chi_square(np.bincount(pairs, minlength=256))) < 4.5


def test_high_index_words_have_their_own_keys():
    dither = Dither(0, 0, "huge")
    across = dither.stream(1, 2**32 - 3, 6)
    assert across[:3].tolist() == dither.stream(1, 2**32 - 3, 3).tolist()
    assert across[3:].tolist() == dither.stream(1, 2**32, 3).tolist()
    assert across[3:].tolist() != dither.stream(1, 0, 3).tolist()


def test_places_are_uniform_over_permutations():
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for step in range(3000):
        keys = Dither(0, step, "w").keys(SHARED)[2:]
        counts[tuple(place(rank, 3, *keys) for rank in range(3))] += 1
    assert abs(chi_square(np.array(list(counts.values())))) < 4.5


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16, 33, 64, 127])
def test_correlated_words_are_uniform_and_in_separate_strata(n):
    count = 4096
    rows = np.stack([Dither(3, 1, "w").correlated(rank, n, 0, count) for rank in range(n)])
    strata = rows.astype(np.uint64) // np.uint64(2**32 // n)
    assert (np.sort(strata, axis=0) == np.arange(n)[:, None]).all()
    for row in rows[:: max(1, n // 5)]:
        assert abs(chi_square(np.bincount(row >> np.uint32(26), minlength=64))) < 4.5
