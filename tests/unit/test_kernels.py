"""The CPU kernels give the bits of the specification."""

import ast
import itertools
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite import binding

from horovod_gqsgd import codes as codes_of
from horovod_gqsgd import lanes, norms, sections
from horovod_gqsgd.codecs import exponential, linear
from horovod_gqsgd.codecs.exponential import ExponentialCodec, Levels
from horovod_gqsgd.codecs.linear import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither, hash32
from horovod_gqsgd.kernels import exponential as fast_exponential
from horovod_gqsgd.kernels import jit
from horovod_gqsgd.kernels import linear as fast_linear
from horovod_gqsgd.kernels import norm as fast_norm
from horovod_gqsgd.kernels import reduce as fast_reduce
from horovod_gqsgd.kernels.bases import base_of, code_of
from horovod_gqsgd.kernels.jit import serial
from horovod_gqsgd.kernels.level_sums import MOST_ROWS
from horovod_gqsgd.reductions import Reduction, get_reduction
from tests.unit.checks import gradients

DTYPES = ["float32", "float64", "float16", "bfloat16"]
SIZES = [0, 1, 2, 7, 4095, 4096, 4097, 10_241, 20_480]
LARGE = 131_072 + 77  # above the size from which kernels use threads
BLOCKS = [128, 1024, 4096, None]
DITHER = Dither(seed=5, step=11, name="layer.weight")


def of_type(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return x.astype(dtype)


def sample(size: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Random values with zeros, denormals, equal maxima and a wide range."""
    x = gradients(1, size, seed)[0]
    x[3::7] = 0
    x[5::11] *= np.float32(1e-38)
    x[::13] *= np.float32(1e-5)
    return of_type(x, dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def max_norms(x: np.ndarray, block: int | None) -> np.ndarray:
    return norms.joined(norms.local(x, "inf", "inf", block), "inf")


def rounded_to(value: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Float32 to the type of ``like``, to nearest even."""
    if like.dtype == np.uint16:
        bits = value.view(np.uint32).astype(np.uint64)
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return value.astype(like.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [*BLOCKS, 131_072])
def test_norm(dtype, block):
    for size, q, p in itertools.product([*SIZES, LARGE], [1, 2, "inf"], [1, 2, "inf"]):
        x = sample(size, dtype)
        expected = norms.local(x, q, p, block)
        out = np.full_like(expected, 99)
        fast_norm.local(x, q, p, block, out)
        assert same(out, expected), (size, q, p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_norm_sees_bad_elements_anywhere(dtype, bad):
    for place in (0, 1, 500, 1023, 1024, 2047, 2048, 2050):
        values = np.ones(2051, np.float32)
        values[place] = bad
        out = np.empty(3, np.int32)
        fast_norm.local(of_type(values, dtype), "inf", "inf", 1024, out)
        assert np.isfinite(out.view(np.float32)).tolist() == [i != place // 1024 for i in range(3)]
        assert np.isnan(out.view(np.float32)).any() == np.isnan(bad)


def check_linear(x: np.ndarray, bits: int, n: int, rank: int, rounding: str, block) -> None:
    norm = max_norms(x, block)
    each = norms.spread(norm, x.size, block)
    s = linear.level_count(bits, n)
    dither = getattr(DITHER, rounding)(rank, n, 0, x.size)
    expected = lanes.pack(linear.encode(norms.as_float32(x), each, s, dither), bits)
    for own in (None, max_norms(x, block)):
        words = np.full_like(expected, 0x55555555)
        fast_linear.encode(x, norm, block, bits, words, DITHER, rounding, rank, n, own=own)
        assert same(words, expected)
    total = (expected.astype(np.int64) * n).astype(np.int32)
    mean = linear.decode(lanes.unpack(total, bits, x.size, s * n), each, s, n, 0.75)
    out = np.empty_like(x)
    fast_linear.decode(total, norm, block, bits, out, n, 0.75)
    assert same(out, rounded_to(mean, out))


@pytest.mark.parametrize("bits", linear.LANES)
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("rounding", ["independent", "correlated"])
def test_linear(bits, n, rounding):
    for size, block in itertools.product([*SIZES, LARGE], BLOCKS):
        check_linear(sample(size), bits, n, n - 1, rounding, block)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_linear_of_other_types(dtype):
    for size, block in itertools.product([*SIZES, LARGE], [1024, None]):
        check_linear(sample(size, dtype), 8, 4, 2, "correlated", block)


@pytest.mark.parametrize("n", [1, 4, 5, 64, 127])
def test_linear_with_many_ranks(n):
    for rank in {0, n // 2, n - 1}:
        check_linear(sample(10_241), 8, n, rank, "correlated", 1024)


def test_linear_keys_beyond_four_billion_elements():
    """A lane that crosses index 2^32 changes keys there; an array of stride 0 takes no memory."""
    keys = np.arange(8, dtype=np.uint32).reshape(2, 4)
    kind, _ = fast_linear.plan(DITHER, "independent", 0, 2, 1)
    start, stop = 2**32 - 5, 2**32 + 5
    x = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (stop,), (0,))
    words, norm = np.zeros(10, np.int32), np.float32([2])
    scheme = (np.uint32(0), np.int32(3 << 16), np.uint32(16))
    fast_linear._encode_lane(x, start, stop, norm, norm, 2**40, words, *scheme, keys, kind)
    index = np.arange(start, stop, dtype=np.uint64)
    dither = np.concatenate([hash32(index[:5], 0, 1), hash32(index[5:], 4, 5)])
    assert same(words, linear.encode(x[:10], norm, 3, dither))


def check_exponential(x: np.ndarray, levels: Levels, n: int, rounding: str, block) -> None:
    norm = max_norms(x, block)
    each = norms.spread(norm, x.size, block)
    dither = getattr(DITHER, rounding)(1, n, 0, x.size)
    scale = exponential.scale_for(each)
    codes = levels.encode_scaled(norms.as_float32(x), scale, dither)
    expected = codes_of.pack(codes, levels.bits)
    for own in (None, max_norms(x, block)):
        packed = np.full_like(expected, 0x55)
        fast_exponential.encode(x, norm, block, levels, packed, DITHER, rounding, 1, n, own=own)
        assert same(packed, expected)
    out = np.empty_like(x)
    fast_exponential.decode(packed, norm, block, levels, out, 0.75)
    assert same(out, rounded_to(exponential.decode(codes, levels, each, 0.75), out))


@pytest.mark.parametrize("octave", [1, 2, 4])
@pytest.mark.parametrize(
    ("n", "rounding"), [(2, "independent"), (2, "correlated"), (3, "correlated")]
)
def test_exponential(octave, n, rounding):
    for bits, size, block in itertools.product(range(2, 9), SIZES, [1024, None]):
        check_exponential(sample(size), Levels(bits, octave), n, rounding, block)


@serial
def code_each(base, x, dither, codes):
    for j in range(x.size):
        codes[j] = code_of(base, x[j], np.float32(2**24), dither[j])


@pytest.mark.parametrize("octave", [1, 2, 4])
def test_exponential_at_the_ends_of_the_dither(octave):
    """Levels and their neighbours, with words that a hash gives once in 2^32 elements."""
    for bits, dither in itertools.product(range(2, 9), (0, 1, 511, 2**31, 2**32 - 512, 2**32 - 1)):
        levels = Levels(bits, octave)
        up, down = (np.nextafter(levels.values, np.float32(end)) for end in (1, 0))
        x = np.concatenate([levels.values, up, down])
        x = np.concatenate([x, -x])
        word = np.full(x.size, dither, np.uint32)
        codes = np.empty(x.size, np.uint8)
        code_each(base_of(levels), x, word, codes)
        assert (codes == levels.encode(x, word)).all()


@pytest.mark.parametrize("octave", [1, 2, 4])
def test_exponential_with_threads(octave):
    for bits in (3, 8):
        check_exponential(sample(LARGE), Levels(bits, octave), 2, "correlated", 1024)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_exponential_of_other_types(dtype):
    for bits, size in itertools.product((4, 8), SIZES):
        check_exponential(sample(size, dtype), Levels(bits, 4), 2, "correlated", 1024)


def check_reduce(reduction: Reduction, levels: Levels, n: int, size: int, mask=0xFF) -> None:
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 2**levels.bits, (n, size)).astype(np.uint8) & np.uint8(mask)
    codes[codes == levels.count + 1] = 0
    check_reduce_of(reduction, levels, codes)


def check_reduce_of(reduction: Reduction, levels: Levels, codes: np.ndarray) -> None:
    rows = np.stack([codes_of.pack(row, levels.bits) for row in codes])
    start, size = 8 * 1000, codes.shape[1]
    expected = reduction.reduce(codes, levels, DITHER.reduction(start, size))
    packed = np.full(codes_of.packed_size(size, levels.bits), 0x55, np.uint8)
    fast_reduce.reduce(reduction, rows, levels, packed, size, DITHER, start)
    assert same(packed, codes_of.pack(expected, levels.bits))


@pytest.mark.parametrize("octave", [1, 2, 4])
@pytest.mark.parametrize("name", ["exact", "pairwise"])
def test_reduce(octave, name):
    for bits, n, size in itertools.product((2, 4, 8), (1, 2, 3, 4, 7, 64), (1, 7, 1024, 5000)):
        check_reduce(get_reduction(name), Levels(bits, octave), n, size)
    check_reduce(get_reduction(name), Levels(8, octave), 4, LARGE)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 64])
def test_exact_reduce_of_short_sums(n):
    """Indices up to 15 have a way of their own, and one more that is larger ends it."""
    for size in (7, 5000):
        check_reduce(get_reduction("exact"), Levels(8, 1), n, size, mask=0x8F)
        check_reduce(get_reduction("exact"), Levels(8, 1), n, size, mask=0x9F)


@pytest.mark.parametrize(("bits", "octave"), [(8, 1), (8, 2), (8, 4), (7, 1), (6, 1)])
@pytest.mark.parametrize("n", [4, MOST_ROWS])
def test_exact_reduce_of_the_smallest_sums(bits, octave, n):
    """A unit in one row of n, of either sign, and zeros: above the smallest level or below it."""
    levels = Levels(bits, octave)
    unit, sign = np.flatnonzero(levels.integers)[-1], levels.count + 1
    codes = np.zeros((n, 512), np.uint8)
    codes[0, ::2], codes[1, 1::2] = unit, unit + sign
    codes[2, ::8] = unit + sign  # which leaves nothing
    check_reduce_of(get_reduction("exact"), levels, codes)


def test_exact_reduce_of_more_rows_than_sums_hold():
    check_reduce(get_reduction("exact"), Levels(4, 4), MOST_ROWS + 1, 9)


EVERY_LEVEL = """
    import numba
    import numpy as np
    from horovod_gqsgd.codecs.exponential import UNIT, Levels
    from horovod_gqsgd.kernels.bases import base_of
    from horovod_gqsgd.kernels.level_sums import SHORT, SHORT_LAST, level_sums

    @numba.njit
    def add(a, b, c, d, before, sums, base):
        return level_sums(a, b, c, d, before, sums, base)

    for levels in (Levels(bits, octave) for bits in range(2, 9) for octave in (1, 2, 4)):
        codes = np.resize(np.arange(2**levels.bits), 264).astype(np.uint8)
        rows = [np.roll(codes, shift) for shift in (0, 1, 5, 77)]
        expected = levels.decode_integers(np.stack(rows)).sum(axis=0)
        sums, once = np.ones(264), np.empty(264, np.float32)
        assert add(*rows, sums, sums, base_of(levels)) == levels.count
        assert add(*rows, None, once, base_of(levels)) == levels.count
        assert (sums == expected + 1).all(), levels
        assert (once == expected.astype(np.float32)).all(), levels
        if levels.octave == 1:
            index = [row & levels.count for row in rows]  # negative zero, never emitted, is none
            few = [(0 < each) & (each <= SHORT_LAST) for each in index]
            rows = [np.where(here, row, 0) for here, row in zip(few, rows)]
            expected = levels.decode_integers(np.stack(rows)).sum(axis=0) >> UNIT - SHORT
            short = np.ones(264, np.int32)
            assert add(*rows, short, short, base_of(levels)) == min(levels.count, SHORT_LAST)
            assert (short == expected + 1).all(), levels
    code = "".join(add.inspect_asm().values())
    print("bytes" if "vpermt2b" in code else "wide" if "vpermq" in code else "plain")
"""

AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


def way_of(features):
    """How level_sums should add levels on a CPU."""
    if "avx512vbmi" in features:
        return "bytes"
    return "wide" if "avx512f" in features else "plain"


@pytest.mark.parametrize(
    ("cpu", "features"),
    [
        ("", ()),
        ("skylake-avx512", (*AVX512, "avx2", "avx", "sse4.2")),
        ("haswell", ("avx2", "avx", "sse4.2")),
        ("x86-64", ("sse2",)),
    ],
    ids=["host", "avx512", "avx2", "sse2"],
)
def test_integer_levels_on_any_cpu(cpu, features, tmp_path):
    """All codes of all widths, with the instructions of this CPU and with those of older ones."""
    here = {name for name, there in binding.get_host_cpu_features().items() if there}
    if missing := set(features) - here:
        pytest.skip(f"this CPU, which lacks {sorted(missing)}, cannot stand in for {cpu}")
    environ = {"NUMBA_CACHE_DIR": str(tmp_path)}
    if cpu:
        given = ",".join(f"+{name}" for name in features)
        environ |= {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": given}
    assert run(EVERY_LEVEL, **environ).strip() == way_of(features or here)


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


@pytest.mark.parametrize("bits", [3, 8])
def test_reduce_with_a_registered_function(bits):
    for size in (1, 7, 5000, LARGE):
        check_reduce(Reduction("median", median), Levels(bits, 1), 5, size)


def test_reduce_refuses_a_wrong_result():
    wrong = Reduction("wrong", lambda codes, levels, dither: codes)
    with pytest.raises(ValueError, match=r"'wrong' returned uint8\[2, 9\] .*return uint8\[9\]"):
        check_reduce(wrong, Levels(8, 1), 2, 9)


@pytest.mark.parametrize("bits", [2, 5, 7])
def test_reduce_refuses_codes_that_would_spill_into_their_neighbours(bits):
    def spill(codes, levels, dither):
        return np.where(np.arange(codes.shape[1]) == 4, 2**bits, codes[0]).astype(np.uint8)

    with pytest.raises(ValueError, match=f"code {2**bits}, which bits={bits} do not hold"):
        check_reduce(Reduction("spill", spill), Levels(bits, 1), 2, 9)


@pytest.mark.parametrize("block", [128, None])
@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8, 10, 16])
def test_sections_make_the_whole(bits, block):
    """Encoded and decoded section by section, a tensor is what it is in one go."""
    size, n = 2 * sections.ELEMENTS // 18 + 70_001, 3
    x = sample(size)
    norm = max_norms(x, block)
    codecs: list[LinearCodec | ExponentialCodec] = [
        LinearCodec(Config(bits=bits, block=block), 1, n)
    ]
    if bits <= 8:
        codecs += [ExponentialCodec(Config(levels="exponential", bits=bits, block=block), 1, n)]
    for codec in codecs:
        dtype = np.int32 if isinstance(codec, LinearCodec) else np.uint8
        whole, apart = (np.empty(codec.length(size), dtype) for _ in range(2))
        outs = np.empty((2, size), np.float32)
        codec.encode(x, norm, whole, DITHER)
        codec.decode(whole, norm, outs[0], 1.0)
        cuts = sections.cut([size], codec.length, sections.ELEMENTS // 18)
        assert [section.low for section in cuts[1:]] == [section.high for section in cuts[:-1]]
        for section in cuts:
            [(_tensor, start, stop)] = section.parts
            codec.encode(x, norm, apart, DITHER, start, stop)
            part = np.zeros_like(apart)
            part[section.low : section.high] = apart[section.low : section.high]
            codec.decode(part, norm, outs[1], 1.0, start, stop)
        assert len(cuts) == 3
        assert same(whole, apart)
        assert same(*outs)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_norms_make_a_block_nan(bad):
    x = sample(5000)
    norm = max_norms(x, 1024)
    norm[1] = bad
    words = np.empty(lanes.word_count(5000, 8), np.int32)
    fast_linear.encode(x, norm, 1024, 8, words, DITHER, "correlated", 0, 2)
    packed = np.empty(codes_of.packed_size(5000, 8), np.uint8)
    fast_exponential.encode(x, norm, 1024, Levels(8, 1), packed, DITHER, "correlated", 0, 2)
    assert (packed[1024:2048] == 0).all()
    for decode in (
        lambda out: fast_linear.decode(words, norm, 1024, 8, out, 2),
        lambda out: fast_exponential.decode(packed, norm, 1024, Levels(8, 1), out),
    ):
        out = np.zeros_like(x)
        decode(out)
        assert np.isnan(out[1024:2048]).all()
        assert np.isfinite(np.delete(out, slice(1024, 2048))).all()


def test_read_only_gradients():
    x = sample(5000)
    x.flags.writeable = False
    check_linear(x, 8, 2, 0, "independent", 1024)


@pytest.mark.parametrize("dtype", ["int32", "complex64", "int16"])
def test_other_types_are_refused(dtype):
    with pytest.raises(TypeError, match=f"type {dtype} cannot be quantised"):
        fast_norm.local(np.ones(4, dtype), "inf", "inf", None, np.empty(1, np.int32))


def test_two_threads_may_call_kernels():
    """As autograd's threads do; Numba's workqueue layer would abort the process."""
    x = sample(LARGE)
    norm = max_norms(x, 1024)
    expected = np.empty(lanes.word_count(LARGE, 8), np.int32)
    fast_linear.encode(x, norm, 1024, 8, expected, DITHER, "correlated", 0, 2)
    results = [np.empty_like(expected) for _ in range(4)]

    def work(words):
        for _ in range(20):
            fast_linear.encode(x, norm, 1024, 8, words, DITHER, "correlated", 0, 2)

    threads = [threading.Thread(target=work, args=(words,)) for words in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(words, expected) for words in results)


def run(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", **environ},
    )  # fmt: skip
    return done.stdout


CACHE_HITS = """
    import numpy as np
    from horovod_gqsgd.kernels import norm
    norm.local(np.ones(10, np.float32), "inf", "inf", None, np.empty(1, np.int32))
    print(sum(norm._max_serial.stats.cache_hits.values()))
"""


def test_compiled_code_is_cached_and_follows_its_sources(tmp_path, monkeypatch):
    environ = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert run(CACHE_HITS, **environ).strip() == "0"
    assert run(CACHE_HITS, **environ).strip() == "1"
    edited = "import pathlib; read = pathlib.Path.read_bytes\n"
    edited += "pathlib.Path.read_bytes = lambda self: read(self) + b'# edit of any kernel file'\n"
    assert run(edited + textwrap.dedent(CACHE_HITS), **environ).strip() == "0"


def test_ranks_that_compile_at_once_never_get_each_others_code(tmp_path):
    """As both see the folder before either has written; stale files, too, stay out of the way."""
    first, second = (jit._Files(tmp_path, "kernel-1.py311", b"stamp") for _ in range(2))
    edited = jit._Files(tmp_path, "kernel-1.py311", b"another stamp")
    first.save(("float32",), "for float32")
    second.save(("float64",), "for float64")
    for files in (first, second):
        assert files.load(("float32",)) == "for float32"
        assert files.load(("float64",)) == "for float64"
        assert files.load(("int16",)) is None
    assert edited.load(("float32",)) is None


PACKAGE = Path(jit.__file__).parents[1]


def imported(path: Path) -> set[str]:
    """The modules of this package that a module has from the start, kernels aside."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        module = getattr(node, "module", None) or ""
        if isinstance(node, ast.ImportFrom) and module.startswith(PACKAGE.name):
            within = "/".join(module.split(".")[1:])
            each = [Path(within, name.name) for name in node.names]
            found |= {str(name) for name in [Path(within), *each] if _is_module(name)}
    return {name for name in found if not name.startswith("kernels")}


def _is_module(name: Path) -> bool:
    return (PACKAGE / f"{name}.py").exists()


def test_what_kernels_have_constants_of_is_known():
    kernels = set.union(*map(imported, (PACKAGE / "kernels").rglob("*.py")))
    reached, rest = set(), kernels
    while rest:
        reached |= rest
        rest = set.union(*(imported(PACKAGE / f"{name}.py") for name in rest)) - reached
    assert reached == set(jit.BAKED_IN)


def test_stamp_covers_what_is_in_the_kernels(monkeypatch, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = tmp_path / "package/kernels"
    monkeypatch.setattr(jit, "_HERE", kernels)
    assert jit._digest() == jit._STAMP

    def changes_with(path: Path) -> bool:
        before, source = jit._digest(), path.read_text() if path.exists() else ""
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{source}\n# edited")
        return jit._digest() != before

    sources = [kernels.parent / f"{name}.py" for name in jit.BAKED_IN]
    assert all(map(changes_with, [*kernels.glob("*.py"), *sources, kernels / "deeper/new.py"]))
    others = ("torch/seam.py", "tensorflow/seam.py", "statistics.py", "agreement.py")
    assert not any(changes_with(kernels.parent / name) for name in others)


def test_no_writable_cache_still_works(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(jit, "_KernelCache", refuse)
    assert jit.serial(lambda x: x + 1)(2) == 3


def test_loops_that_compute_use_the_widest_vectors():
    """LLVM stays at 256 bits unless told; `wide` must outlive changes of llvmlite."""
    if not binding.get_host_cpu_features().get("avx512f"):
        pytest.skip("this CPU has no vectors of 512 bits")
    if binding.get_host_cpu_name() in jit.SLOWED_BY_WIDE_VECTORS:
        pytest.skip("vectors of 512 bits would lower the clock of this CPU")

    def loop(x):
        jit.wide()
        for j in range(x.size):
            x[j] = np.uint32(x[j] ^ np.uint32(x[j] >> np.uint32(3)))

    compiled = numba.njit(loop)
    compiled(np.zeros(8, np.uint32))
    assert "zmm" in compiled.inspect_asm(compiled.signatures[0])
