"""The PTX interpreter computes what the PTX manual says, checked with Python's exact numbers."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.ptx import MemoryFault, Schedule, UnknownInstruction, Window, launch

HEADER = ".version 8.8\n.target sm_80\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<9>; .reg .b16 %rs<20>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
.reg .f32 %f<20>; .reg .f64 %fd<20>;
"""
PREFIX = {"b8": "rs", "b16": "rs", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd"}
EDGES = {
    8: [0, 1, 2, 0x7F, 0x80, 0xFF, 0x5A],
    16: [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x1234],
    32: [0, 1, 5, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF],
    64: [0, 1, 63, 64, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x0123456789ABCDEF],
}


def kernel(arrays: int, body: str, shared: str = "") -> str:
    """A kernel of ``arrays`` pointers %rd1, %rd2, … (``%r1`` the thread's index in the grid)."""
    names = [f"p{7 * k + j}" for k in range(arrays) for j in range(7)]
    params = ", ".join(f".param .u64 {name}" for name in names)
    loads = "".join(f"ld.param.u64 %rd{k + 1}, [p{7 * k + 4}];\n" for k in range(arrays))
    index = (
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
        "mad.lo.s32 %r1, %r1, %r2, %r3;\n"
    )
    text = f"{{{REGISTERS}{loads}{index}{body}\nret;\n}}"
    return f"{HEADER}{shared}\n.visible .entry k({params})\n{text}"


def element(array: int, width: int, to: int) -> str:
    """Puts the address of the thread's element into %rd<to>."""
    return f"mul.wide.u32 %rd{to}, %r1, {width}; add.s64 %rd{to}, %rd{array}, %rd{to};\n"


def held(kind: str) -> str:
    return kind if kind[0] == "f" and kind != "f16" else f"b{kind.lstrip('usbf')}"


def apply(opcode: str, result: str, kinds: list[str], values: list, tail: str = "") -> np.ndarray:
    """Run one instruction on columns of raw bits; returns the raw bits of the results."""
    width = {kind: int(kind.lstrip("usbf")) // 8 for kind in [result, *kinds]}
    arrays = [np.array(v, f"u{width[k]}") for v, k in zip(values, kinds, strict=True)]
    out = np.zeros(len(values[0]), f"u{width[result]}")
    body, registers = "", []
    for place, kind in enumerate(kinds):
        register = f"%{PREFIX[held(kind)]}{12 + place}"
        load = kind if kind[0] in "us" else held(kind)
        body += element(place + 1, width[kind], 10) + f"ld.global.{load} {register}, [%rd10];\n"
        registers.append(register)
    target = f"%{PREFIX[held(result)]}18"
    body += f"{opcode} {', '.join([target, *registers])}{tail};\n"
    body += element(len(kinds) + 1, width[result], 11)
    body += f"st.global.{held(result)} [%rd11], {target};"
    launch(kernel(len(kinds) + 1, body), 1, out.size, (*arrays, out))
    return out


def cross(*columns: list) -> list[list]:
    """All combinations, as columns."""
    return [list(column) for column in zip(*itertools.product(*columns), strict=True)]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def number(value: int, kind: str) -> int:
    """Raw bits as the integer they mean."""
    return signed(value, int(kind[1:])) if kind[0] == "s" else value


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER = {
    "add.{}": lambda a, b, w: a + b,
    "sub.{}": lambda a, b, w: a - b,
    "mul.lo.{}": lambda a, b, w: a * b,
    "mul.hi.{}": lambda a, b, w: a * b >> w,
    "min.{}": lambda a, b, w: min(a, b),
    "max.{}": lambda a, b, w: max(a, b),
    "div.{}": lambda a, b, w: truncated(a, b) if b else None,
    "rem.{}": lambda a, b, w: a - truncated(a, b) * b if b else None,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("opcode", INTEGER)
def test_integers(opcode, kind):
    bits = int(kind[1:])
    columns = cross(EDGES[bits], EDGES[bits])
    got = apply(opcode.format(kind), kind, [kind, kind], columns)
    for a, b, result in zip(*columns, got.tolist(), strict=True):
        expected = INTEGER[opcode](number(a, kind), number(b, kind), bits)
        assert expected is None or result == expected % (1 << bits), (a, b)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind):
    bits = int(kind[1:])
    a, b, c = columns = cross(EDGES[bits], EDGES[bits], [0, 7, (1 << 2 * bits) - 1])
    wide = f"{kind[0]}{2 * bits}"
    got = apply(f"mad.wide.{kind}", wide, [kind, kind, wide], columns)
    products = [number(x, kind) * number(y, kind) + z for x, y, z in zip(a, b, c, strict=True)]
    assert got.tolist() == [p % (1 << 2 * bits) for p in products]


@pytest.mark.parametrize("kind", ["b32", "u32", "s32", "b64", "u64", "s64"])
def test_shifts_beyond_the_width(kind):
    bits = int(kind[1:])
    columns = cross(EDGES[bits], [0, 1, 31, 32, 33, 63, 64, 200, 0xFFFFFFFF])
    if kind[0] == "b":
        got = apply(f"shl.{kind}", kind, [kind, "u32"], columns)
        expected = [a << b if b < bits else 0 for a, b in zip(*columns, strict=True)]
    else:
        got = apply(f"shr.{kind}", kind, [kind, "u32"], columns)
        expected = [number(a, kind) >> b for a, b in zip(*columns, strict=True)]
    assert got.tolist() == [e % (1 << bits) for e in expected]


def test_funnel_shifts():
    a, b, c = columns = cross(EDGES[32], EDGES[32], [0, 1, 13, 31, 32, 40])
    rows = list(zip(a, b, c, strict=True))
    pairs = {
        "shf.l.wrap.b32": [((y << 32 | x) << (z % 32)) >> 32 for x, y, z in rows],
        "shf.r.wrap.b32": [(y << 32 | x) >> (z % 32) for x, y, z in rows],
        "shf.l.clamp.b32": [((y << 32 | x) << min(z, 32)) >> 32 for x, y, z in rows],
        "shf.r.clamp.b32": [(y << 32 | x) >> min(z, 32) for x, y, z in rows],
    }
    for opcode, expected in pairs.items():
        got = apply(opcode, "b32", ["b32", "b32", "u32"], columns)
        assert got.tolist() == [e % 2**32 for e in expected], opcode


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind):
    bits = int(kind[1:])
    columns = cross(EDGES[bits], [0, 1, 7, 31, 40], [0, 1, 8, 32, 70])
    got = apply(f"bfe.{kind}", kind, [kind, "u32", "u32"], columns)
    for a, start, length, result in zip(*columns, got.tolist(), strict=True):
        # the manual: bits beyond the top repeat the sign, or are 0
        source = number(a, kind) if kind[0] == "s" else a
        field = (source >> start) & ((1 << length) - 1)
        top = min(start + length - 1, bits - 1)
        if kind[0] == "s" and length and a >> top & 1:
            field |= -1 << max(0, top - start + 1)
        assert result == field % (1 << bits), (a, start, length)
    into = [0x0F0F0F0F0F0F0F0F % (1 << bits)] * len(columns[0])
    raw = f"b{bits}"
    got = apply(f"bfi.{raw}", raw, [raw, raw, "u32", "u32"], [columns[0], into, *columns[1:]])
    for a, old, start, length, result in zip(
        columns[0], into, *columns[1:], got.tolist(), strict=True
    ):
        mask = (((1 << length) - 1) << start) % (1 << bits)
        assert result == (old & ~mask) | ((a << start) & mask), (a, start, length)


def test_bytes_and_truth_tables():
    a, b, c = columns = cross(
        [0x80FF0112, 0x7F7E7D7C], [0x01828384, 5], [0x3210, 0x7654, 0xFB91, 0x0E5D]
    )
    got = apply("prmt.b32", "b32", ["b32", "b32", "b32"], columns)
    for x, y, choice, result in zip(*columns, got.tolist(), strict=True):
        pool = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        picks = [choice >> 4 * k & 15 for k in range(4)]
        expected = [pool[p & 7] if p < 8 else (255 if pool[p & 7] > 127 else 0) for p in picks]
        assert list(result.to_bytes(4, "little")) == expected
    for table, function in {
        0x96: lambda x, y, z: x ^ y ^ z,
        0xE8: lambda x, y, z: (x & y) | (x & z) | (y & z),
        0xCA: lambda x, y, z: (x & y) | (~x & z),
    }.items():
        got = apply("lop3.b32", "b32", ["b32", "b32", "b32"], columns, f", {table}")
        assert got.tolist() == [function(*row) % 2**32 for row in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits):
    values = EDGES[bits]
    texts = [f"{v:0{bits}b}" for v in values]
    kind = f"b{bits}"
    assert apply(f"brev.{kind}", kind, [kind], [values]).tolist() == [
        int(t[::-1], 2) for t in texts
    ]
    assert apply(f"popc.{kind}", "u32", [kind], [values]).tolist() == [t.count("1") for t in texts]
    zeros = [len(t) - len(t.lstrip("0")) for t in texts]
    assert apply(f"clz.{kind}", "u32", [kind], [values]).tolist() == zeros


# -- floating point

FORMATS: dict[str, Any] = {
    "f16": (11, -14, np.float16),
    "f32": (24, -126, np.float32),
    "f64": (53, -1022, np.float64),
}


WHOLE: dict[str, Any] = {"n": round, "z": math.trunc, "m": math.floor, "p": math.ceil}


def rounded(exact: Fraction, kind: str, mode: str) -> float:
    """An exact number to a floating-point type, from the definition of the modes."""
    precision, lowest, dtype = FORMATS[kind]
    if exact == 0:
        return 0.0
    exponent = lowest
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    steps = WHOLE[mode[1]](exact / unit)
    if abs(steps * unit) > Fraction(float(np.finfo(dtype).max)):
        return math.copysign(math.inf, steps)
    return float(steps * unit)


def bits_of(values: list, kind: str) -> list[int]:
    array = np.array(values, FORMATS[kind][2])
    return array.view(f"u{array.itemsize}").tolist()


def values_of(raw: np.ndarray, kind: str) -> list[float]:
    return raw.view(FORMATS[kind][2]).tolist()


def samples(kind: str, count: int) -> list[float]:
    """Numbers of many sizes, with neighbours of powers of two and subnormal ones."""
    rng = np.random.default_rng(0)
    dtype = FORMATS[kind][2]
    spread = 6 if kind == "f16" else 20
    x = (rng.normal(size=count) * 2.0 ** rng.integers(-spread, spread // 2, count)).astype(dtype)
    x[:8] = [
        1,
        -1,
        np.finfo(dtype).eps,
        1 + np.finfo(dtype).eps,
        np.finfo(dtype).tiny,
        3,
        1.5,
        -0.5,
    ]
    x[8:10] = [np.finfo(dtype).smallest_subnormal * 3, -np.finfo(dtype).smallest_subnormal]
    return x.tolist()


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_float32_is_rounded_once_in_every_mode(name, mode):
    a, b = samples("f32", 400), samples("f32", 400)[::-1]
    c = [-float(np.float32(x * y)) for x, y in zip(a, b, strict=True)]  # cancels all but the error
    columns = [a, b, c] if name == "fma" else [a, b]
    raw = [bits_of(column, "f32") for column in columns]
    got = values_of(apply(f"{name}.{mode}.f32", "f32", ["f32"] * len(raw), raw), "f32")
    for row, result in zip(zip(*columns, strict=True), got, strict=True):
        x, y, *z = map(Fraction, row)
        exact = {"add": x + y, "sub": x - y, "mul": x * y}.get(name, x * y + sum(z))
        assert result == rounded(exact, "f32", mode), row


def test_float64_fma_has_one_rounding():
    a, b = samples("f64", 200), samples("f64", 200)[::-1]
    c = [-(x * y) for x, y in zip(a, b, strict=True)]
    raw = [bits_of(column, "f64") for column in (a, b, c)]
    got = values_of(apply("fma.rn.f64", "f64", ["f64"] * 3, raw), "f64")
    exact = [
        float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got == exact


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_root(kind):
    a, b = samples(kind, 300), samples(kind, 300)[::-1]
    dtype = FORMATS[kind][2]
    with np.errstate(all="ignore"):
        expected = [float(dtype(x) / dtype(y)) for x, y in zip(a, b, strict=True)]
    got = apply(f"div.rn.{kind}", kind, [kind, kind], [bits_of(a, kind), bits_of(b, kind)])
    assert values_of(got, kind) == expected
    roots = apply(f"sqrt.rn.{kind}", kind, [kind], [bits_of(np.abs(a).tolist(), kind)])
    assert values_of(roots, kind) == np.sqrt(np.abs(np.array(a, dtype))).tolist()


def test_extremes_prefer_numbers_to_nan():
    raw = [
        bits_of([math.nan, 1, -0.0, 0.0, math.nan], "f32"),
        bits_of([2, math.nan, 0.0, -0.0, math.nan], "f32"),
    ]
    low, high = (apply(f"{n}.f32", "f32", ["f32", "f32"], raw) for n in ("min", "max"))
    assert values_of(low, "f32")[:2] == values_of(high, "f32")[:2] == [2, 1]
    assert low[2:4].tolist() == [0x80000000] * 2
    assert high[2:4].tolist() == [0] * 2
    assert low[4] == high[4] == 0x7FFFFFFF  # the one NaN of a GPU


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("to", "source"), [("f16", "f32"), ("f32", "f64"), ("f16", "f64")])
def test_narrowing_floats(to, source, mode):
    values = [x * scale for x in samples(source, 300) for scale in (1, 2.0**-9)]
    raw = bits_of(values, source)
    values = values_of(np.array(raw, f"u{FORMATS[source][2](0).itemsize}"), source)
    got = values_of(apply(f"cvt.{mode}.{to}.{source}", to, [source], [raw]), to)
    assert got == [rounded(Fraction(v), to, mode) for v in values]


def test_bfloat16():
    values = [*samples("f32", 300), 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, math.inf]
    raw = bits_of(values, "f32")
    got = apply("cvt.rn.bf16.f32", "b16", ["f32"], [raw])
    expected = [(r + 0x7FFF + (r >> 16 & 1)) >> 16 for r in raw]  # to nearest even
    assert got.tolist() == expected
    assert apply("cvt.rn.bf16.f32", "b16", ["f32"], [[0x7FC00001]]).tolist() == [0x7FFF]
    assert apply("cvt.f32.bf16", "f32", ["b16"], [[0x3F80, 0xC040]]).view(np.float32).tolist() == [
        1,
        -3,
    ]


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "u8", "s8"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_integers_saturate(kind, mode):
    values = [
        0.5,
        1.5,
        -0.5,
        -2.5,
        3.7,
        -3.7,
        2.0**31,
        -(2.0**31),
        2.0**64,
        -(2.0**70),
        math.inf,
        100.25,
    ]
    bits = int(kind[1:])
    held = max(bits, 16)  # the smallest register
    got = apply(f"cvt.{mode}.{kind}.f32", f"b{held}", ["f32"], [bits_of(values, "f32")])
    low = -(1 << bits - 1) if kind[0] == "s" else 0
    high = low + (1 << bits) - 1
    whole = [v if math.isinf(v) else WHOLE[mode[1]](v) for v in values]
    assert got.tolist() == [min(max(w, low), high) % (1 << held) for w in whole]
    (nan,) = apply(f"cvt.{mode}.{kind}.f32", f"b{held}", ["f32"], [[0x7FC00000]]).tolist()
    assert nan == (1 << 63 if kind[1:] == "64" else 0)


@pytest.mark.parametrize(
    ("to", "source"),
    [
        ("f32", "s32"),
        ("f32", "u32"),
        ("f16", "s16"),
        ("f64", "u32"),
        ("f32", "s64"),
        ("f32", "u64"),
    ],
)
def test_integers_to_floats(to, source):
    values = EDGES[int(source[1:])] + [0x01000001 % (1 << int(source[1:]))]
    got = values_of(apply(f"cvt.rn.{to}.{source}", to, [source], [values]), to)
    assert got == [rounded(Fraction(number(v, source)), to, "rn") for v in values]


def test_integers_to_integers():
    values = EDGES[32]
    for to in ["s8", "u8", "s16", "u16", "s64", "u64"]:
        for source in ["u32", "s32"]:
            held = max(int(to[1:]), 16)
            got = apply(f"cvt.{to}.{source}", f"b{held}", [source], [values]).tolist()
            low = [number(v, source) % (1 << int(to[1:])) for v in values]
            assert got == [number(v, to) % (1 << held) for v in low], (to, source)
    got = apply("cvt.sat.s16.s32", "b16", ["s32"], [values]).tolist()
    assert got == [min(max(number(v, "s32"), -32768), 32767) % 65536 for v in values]


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_and_nan(name):
    values = [0.0, 1.0, -1.0, math.inf, math.nan]
    columns = cross(values, values)
    raw = [bits_of(column, "f32") for column in columns]
    nan = [math.isnan(a) or math.isnan(b) for a, b in zip(*columns, strict=True)]
    true = [COMPARISONS[name](a, b) for a, b in zip(*columns, strict=True)]
    for suffix, expected in {
        "": true,
        "u": [t or n for t, n in zip(true, nan, strict=True)],
    }.items():
        out = np.zeros(len(raw[0]), np.uint32)
        body = element(1, 4, 10) + "ld.global.f32 %f1, [%rd10];" + element(2, 4, 10)
        body += f"ld.global.f32 %f2, [%rd10]; setp.{name}{suffix}.f32 %p1, %f1, %f2;"
        body += "selp.u32 %r5, 1, 0, %p1;" + element(3, 4, 10) + "st.global.u32 [%rd10], %r5;"
        launch(kernel(3, body), 1, out.size, (*(np.array(r, np.uint32) for r in raw), out))
        assert out.tolist() == expected


# -- control, memory, blocks

COLLATZ = f"""
{element(1, 4, 10)} ld.global.u32 %r5, [%rd10]; mov.u32 %r6, 0;
again: setp.eq.s32 %p1, %r5, 1; @%p1 bra done;
and.b32 %r7, %r5, 1; setp.eq.s32 %p2, %r7, 0; @!%p2 bra odd;
shr.u32 %r5, %r5, 1; bra.uni next;
odd: mad.lo.s32 %r5, %r5, 3, 1;
next: add.s32 %r6, %r6, 1; bra again;
done: {element(2, 4, 10)} st.global.u32 [%rd10], %r6;
"""


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(32), Schedule(1, seed=3)])
def test_threads_part_and_meet(schedule):
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    x, out = np.arange(1, 97, dtype=np.uint32), np.zeros(96, np.uint32)
    machine = launch(kernel(2, COLLATZ), 3, 32, (x, out), schedule=schedule)
    assert out.tolist() == [steps(n) for n in x.tolist()]
    # a warp goes on for as long as one of its threads does
    add = [i.text.startswith("add.s32 %r6") for i in machine.function.instructions].index(True)
    if schedule.width != 1:
        assert machine.issued[add] == out.reshape(3, 32).max(axis=1).sum()


def test_guards_apply_to_single_instructions():
    body = "setp.lt.u32 %p1, %r1, 3; mov.u32 %r5, 1;"
    body += "@%p1 mov.u32 %r5, 7; @!%p1 add.s32 %r5, %r5, 1;"
    body += element(1, 4, 10) + "st.global.u32 [%rd10], %r5;"
    out = np.zeros(6, np.uint32)
    launch(kernel(1, body), 1, 6, (out,))
    assert out.tolist() == [7, 7, 7, 2, 2, 2]


def reversal(barrier: str) -> str:
    """Every block of 8 threads turns its 8 elements around, by way of shared memory."""
    body = (
        f"{element(1, 4, 10)} ld.global.u32 %r5, [%rd10]; mov.u32 %r6, room; shl.b32 %r7, %r3, 2;"
    )
    body += f"add.s32 %r6, %r6, %r7; st.shared.u32 [%r6], %r5; {barrier}"
    body += "mov.u32 %r8, room; sub.s32 %r8, %r8, %r7; ld.shared.u32 %r9, [%r8+28];"
    return kernel(1, body + "st.global.u32 [%rd10], %r9;", ".shared .align 4 .b8 room[32];")


def test_shared_memory_and_barriers():
    expected = np.arange(32).reshape(4, 8)[:, ::-1].reshape(-1)
    for schedule in [Schedule(), Schedule(4, seed=1), Schedule(1, seed=2)]:
        x = np.arange(32, dtype=np.uint32)
        launch(reversal("bar.sync 0;"), 4, 8, (x,), schedule=schedule)
        assert x.tolist() == expected.tolist()


def test_a_missing_barrier_shows_in_another_order():
    together, shuffled = np.arange(32, dtype=np.uint32), np.arange(32, dtype=np.uint32)
    launch(reversal(""), 4, 8, (together,))
    launch(reversal(""), 4, 8, (shuffled,), schedule=Schedule(1, seed=2))
    assert together.tolist() != shuffled.tolist()


def test_threads_must_meet_at_one_barrier():
    body = "setp.lt.u32 %p1, %r3, 3; @%p1 bra low; bar.sync 0; bra end; low: bar.sync 0; end:"
    with pytest.raises(RuntimeError, match="different barriers"):
        launch(kernel(1, body), 1, 8, (np.zeros(1, np.uint32),))


def test_atomics():
    x = np.random.default_rng(1).integers(0, 1000, 64).astype(np.int32)
    most, total, order = np.array([-5], np.int32), np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    body = element(1, 4, 10) + "ld.global.u32 %r5, [%rd10];"
    body += "atom.global.max.s32 %r6, [%rd2], %r5; red.global.add.u32 [%rd3], %r5;"
    body += (
        "atom.global.add.u32 %r7, [%rd3], 0;" + element(4, 4, 10) + "st.global.u32 [%rd10], %r7;"
    )
    launch(kernel(4, body), 2, 32, (x, most, total, order))
    assert (most[0], total[0]) == (x.max(), x.sum())
    assert order.tolist() == [x.sum()] * 64


def test_vectors_and_their_alignment():
    copy = element(1, 16, 10) + "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd10];"
    copy += element(2, 16, 11) + "st.global.v4.u32 [%rd11], {%r8, %r7, %r6, %r5};"
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    launch(kernel(2, copy), 1, 8, (x, out))
    assert out.tolist() == x.reshape(8, 4)[:, ::-1].reshape(-1).tolist()
    with pytest.raises(MemoryFault, match="no multiple of 16"):
        launch(kernel(2, copy), 1, 7, (x[1:29], out))


def test_pairs_of_registers():
    body = element(1, 8, 10) + "ld.global.u64 %rd5, [%rd10]; mov.b64 {%r5, %r6}, %rd5;"
    body += "mov.b64 %rd6, {%r6, %r5}; st.global.u64 [%rd10], %rd6;"
    x = np.array([0x0123456789ABCDEF, 5], np.uint64)
    launch(kernel(1, body), 1, 2, (x,))
    assert x.tolist() == [0x89ABCDEF01234567, 5 << 32]


def test_access_outside_an_array_is_an_error():
    body = element(1, 4, 10) + "st.global.u32 [%rd10], %r1;"
    with pytest.raises(MemoryFault, match="4 bytes at offset 20 of 20"):
        launch(kernel(1, body), 1, 6, (np.zeros(5, np.uint32),))
    with pytest.raises(MemoryFault, match="beyond 32 bytes of shared memory"):
        launch(reversal("bar.sync 0;"), 1, 9, (np.zeros(9, np.uint32),))


def test_the_far_end_of_a_tensor():
    body = "mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd5, %r5, %r2; cvt.u64.u32 %rd6, %r3;"
    body += "add.s64 %rd5, %rd5, %rd6; shl.b64 %rd6, %rd5, 2; add.s64 %rd6, %rd1, %rd6;"
    body += "cvt.u32.u64 %r6, %rd5; st.global.u32 [%rd6], %r6;"
    out, first = np.zeros(64, np.uint32), 2**33
    far = Window(out, first, first + 64)
    launch(
        kernel(1, body),
        first // 32 + 2,
        32,
        (far,),
        blocks=np.array([first // 32, first // 32 + 1]),
    )
    assert out.tolist() == list(range(64))


@pytest.mark.parametrize(
    "statement",
    [
        "add.ftz.f32 %f1, %f1, %f2;",
        "div.approx.f32 %f1, %f1, %f2;",
        "ex2.approx.f32 %f1, %f2;",
        "shfl.sync.bfly.b32 %r5, %r6, 1, 31, -1;",
        "ld.local.u32 %r5, [%rd5];",
        "ld.u32 %r5, [%rd5];",
        "nonsense.u32 %r5, %r6;",
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_named(statement):
    with pytest.raises(UnknownInstruction, match=statement.split()[0]):
        launch(kernel(1, statement), 1, 1, (np.zeros(1, np.uint32),))


def test_registers_are_written_before_they_are_read():
    with pytest.raises(RuntimeError, match=r"%r9 is read before it is written"):
        launch(kernel(1, "add.s32 %r5, %r9, 1;"), 1, 1, (np.zeros(1, np.uint32),))


def test_arguments_must_fit_the_parameters():
    with pytest.raises(TypeError, match="takes parameters"):
        launch(kernel(1, ""), 1, 1, (np.int32(5),))
