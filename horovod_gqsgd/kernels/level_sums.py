"""Sums of integer levels, of four rows at a time, written as LLVM vectors.

Where all levels are powers of two from 2^-20 up, 2^20 is the level 1, and int32 holds the sums.
Otherwise it is 2^40, and there are two ways.

By exponents: a level ``2^40·b^-k`` is a float64 whose exponent falls by one every ``octave``
indices: its bits are an entry of a table that the low bits of the index choose, less the index
shifted to the exponent. From scalar code LLVM would make that choice by comparisons; AVX-512 has an
instruction for it. Levels are rounded to integers before they are added, and float64 holds their
sums.

By bytes, in little more than half of the time, where the CPU looks 64 bytes up at once (AVX-512
VBMI): a table of 128 entries for each of the six bytes of a level, three if it is short. Bytes of
the four rows lie side by side, and one instruction (VNNI) adds them with their signs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from horovod_gqsgd.codecs.exponential import UNIT, Levels
from horovod_gqsgd.kernels.bases import octave_of

#: Codes taken at once, and at the end of a row. Packed rows consist of whole groups.
WIDTH, GROUP = 16, 8
#: So many rows have sums that float64 holds.
MOST_ROWS = 2 ** (53 - UNIT)
#: The level 1 in short sums, as a power of two; the last index they know; rows that int32 holds.
SHORT = 20
SHORT_LAST, SHORT_ROWS = SHORT + 1, 2 ** (30 - SHORT)

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_BYTES, _WORDS, _DOUBLES = (ir.VectorType(item, GROUP) for item in (_I8, _I64, ir.DoubleType()))


def _all(kind: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
    kind = ir.VectorType(_I32, len(places))
    return builder.shuffle_vector(a, b, ir.Constant(kind, list(places)))


def _repeat(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    kind = ir.VectorType(value.type, count)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    return _shuffle(builder, one, one, [0] * count)


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _entries(octave: int) -> tuple[list[int], int]:
    """The table, and how far an index is shifted: it lowers the exponent by 1/octave.

    Entries are of period ``octave``: they make good what the low bits of the index take away.
    """
    shift = 52 - octave.bit_length() + 1
    low = np.arange(GROUP)
    levels = 2.0 ** (UNIT + (1 - low) / octave)
    return [int(bits) for bits in levels.view(np.int64) + (low << shift)], shift


def _choose(builder: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """The entries that the lowest bits of ``index`` name, as many as the table needs."""
    if len(table) == 1:
        return _all(_WORDS, table[0])
    half = len(table) // 2
    chosen = builder.and_(index, _all(_WORDS, half))
    upper = builder.icmp_unsigned("!=", chosen, _all(_WORDS, 0))
    low, high = (_choose(builder, part, index) for part in (table[:half], table[half:]))
    return builder.select(upper, high, low)


def _levels(
    builder: ir.IRBuilder, octave: int, codes: ir.Value, last: ir.Value, avx512: bool
) -> ir.Value:
    """Float64 vectors ``±rint(2^40·b^-k)`` of eight codes, a byte each."""
    table, shift = _entries(octave)
    last = _repeat(builder, last, GROUP)
    index = builder.and_(codes, last)
    down = builder.zext(index, _WORDS)
    if avx512:
        entries = ir.Constant(_WORDS, table)
        chosen = _call(builder, "llvm.x86.avx512.permvar.di.512", _WORDS, entries, down)
    else:
        chosen = _choose(builder, table[:octave], down)
    bits = builder.sub(chosen, builder.shl(down, _all(_WORDS, shift)))
    negative = builder.icmp_unsigned(">", codes, last)
    bits = builder.select(negative, builder.xor(bits, _all(_WORDS, 1 << 63)), bits)
    level = _call(builder, "llvm.rint.v8f64", _DOUBLES, builder.bitcast(bits, _DOUBLES))
    some = builder.icmp_unsigned("!=", index, _all(_BYTES, 0))
    return builder.select(some, level, _all(_DOUBLES, 0.0))


def _by_exponents(
    builder: ir.IRBuilder, octave: int, rows: Sequence[ir.Value], last: ir.Value, avx512: bool
) -> ir.Value:
    """Float64 sums of eight codes of every row."""
    levels = [_levels(builder, octave, codes, last, avx512) for codes in rows]
    return functools.reduce(builder.fadd, levels)


def _by_shifts(builder: ir.IRBuilder, rows: Sequence[ir.Value], last: ir.Value) -> ir.Value:
    """Short sums of some codes of every row."""
    codes = rows[0].type
    words = ir.VectorType(_I32, codes.count)
    last = _repeat(builder, last, codes.count)
    total = _all(words, 0)
    for row in rows:
        down = builder.sub(builder.and_(row, last), _all(codes, 1))  # which wraps for zero
        few = builder.icmp_unsigned("<", down, _all(codes, 31))
        down = builder.zext(builder.select(few, down, _all(codes, 31)), words)
        negative = builder.sext(builder.icmp_unsigned(">", row, last), words)
        one = builder.add(builder.and_(negative, _all(words, -2 << SHORT)), _all(words, 1 << SHORT))
        total = builder.add(total, builder.ashr(one, down))
    return total


def _byte_tables(levels: np.ndarray, count: int) -> np.ndarray:
    """Uint8[count, 128]: the lowest bytes of integer levels, by their index."""
    return levels.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :count].T


def _side_by_side(
    builder: ir.IRBuilder, rows: Sequence[ir.Value], last: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Indices and signs, ±1, of sixteen codes of four rows, those of one element together."""
    a, b, c, d = rows
    left, right = (_shuffle(builder, *pair, range(2 * WIDTH)) for pair in ((a, b), (c, d)))
    together = np.arange(4 * WIDTH).reshape(4, WIDTH).T.ravel().tolist()
    codes = _shuffle(builder, left, right, together)
    last = _repeat(builder, last, 4 * WIDTH)
    negative = builder.icmp_unsigned(">", codes, last)
    signs = builder.select(negative, _all(codes.type, -1), _all(codes.type, 1))
    return builder.and_(codes, last), signs


def _by_bytes(
    builder: ir.IRBuilder, tables: np.ndarray, index: ir.Value, signs: ir.Value
) -> ir.Value:
    """Int32 sums of sixteen elements, whose levels consist of up to three bytes."""
    integers = ir.VectorType(_I32, WIDTH)
    total = _all(integers, 0)
    for entries in tables[::-1]:
        low, high = (ir.Constant(index.type, half.tolist()) for half in np.split(entries, 2))
        found = _call(builder, "llvm.x86.avx512.vpermi2var.qi.512", index.type, low, index, high)
        # int32 in the place of four bytes, as LLVM 14 has it; newer ones read it so
        fours = (builder.bitcast(item, integers) for item in (found, signs))
        total = builder.shl(total, _all(integers, 8))
        total = _call(builder, "llvm.x86.avx512.vpdpbusd.512", integers, total, *fours)
    return total


def _long_by_bytes(
    builder: ir.IRBuilder, octave: int, index: ir.Value, signs: ir.Value, kind: ir.Type
) -> ir.Value:
    """The same of levels of six bytes, as floats of a ``kind``."""
    integers, floats = (ir.VectorType(item, WIDTH) for item in (_I32, kind))
    tables = np.split(_byte_tables(Levels(8, octave).integers, 6), 2)
    low, high = (_by_bytes(builder, half, index, signs) for half in tables)
    # 24 bits in the lower part: both are exact as float32, and their sum is rounded once.
    high = builder.add(high, builder.ashr(low, _all(integers, 24)))
    low = builder.and_(low, _all(integers, 2**24 - 1))
    low, high = (builder.sitofp(half, floats) for half in (low, high))
    return builder.fadd(low, builder.fmul(high, _all(floats, 2.0**24)))


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned(">", a, b), a, b)


@intrinsic
def level_sums(typing_context, a, b, c, d, before, sums, base):
    """Sum the integer levels of four rows, and what was ``before``; returns the largest index.

    ``before`` is None or of the type of ``sums``: float64, int32 if they are short, or float32,
    which holds no more than four rows.
    """
    octave, short, narrow = octave_of(base), sums.dtype == types.int32, sums.dtype == types.float32

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        features = set(context.codegen().magic_tuple()[2].split(","))
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:6], arguments[:6], strict=True)
            if kind != types.none
        ]
        last = builder.extract_value(arguments[6], base.fields.index("last"))
        last = builder.trunc(last, _I8)
        kind = context.get_value_type(sums.dtype)

        def place(array: Any, at: ir.Value, kind: ir.VectorType) -> ir.Value:
            return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

        def add(at: ir.Value, count: int, by_bytes: bool) -> list[ir.Value]:
            """Add some codes of every row; returns their indices."""
            codes = ir.VectorType(_I8, count)
            rows = [builder.load(place(array, at, codes), align=1) for array in arrays[:4]]
            if by_bytes:
                index, signs = _side_by_side(builder, rows, last)
                indices = [index]
                if short:
                    tables = _byte_tables(Levels(8, 1).integers >> UNIT - SHORT, 3)
                    total = _by_bytes(builder, tables, index, signs)
                else:
                    total = _long_by_bytes(builder, octave, index, signs, kind)
            else:
                indices = [builder.and_(row, _repeat(builder, last, count)) for row in rows]
                if short:
                    total = _by_shifts(builder, rows, last)
                else:
                    total = _by_exponents(builder, octave, rows, last, "+avx512f" in features)
                    total = builder.fptrunc(total, ir.VectorType(kind, count)) if narrow else total
            if before != types.none:
                sum_of = builder.add if short else builder.fadd
                total = sum_of(builder.load(place(arrays[4], at, total.type), align=4), total)
            builder.store(total, place(arrays[-1], at, total.type), align=4)
            return indices

        def add_all(start: ir.Value, stop: ir.Value, count: int, by_bytes: bool) -> ir.Value:
            """The same of start … stop − 1; returns the largest index."""
            width = count * (4 if by_bytes else 1)
            tops = cgutils.alloca_once_value(builder, _all(ir.VectorType(_I8, width), 0))
            with cgutils.for_range_slice(builder, start, stop, _I64(count)) as (at, _):
                top = builder.load(tops)
                for index in add(at, count, by_bytes):
                    top = _larger(builder, top, index)
                builder.store(top, tops)
            return _call(builder, f"llvm.vector.reduce.umax.v{width}i8", _I8, builder.load(tops))

        size = builder.extract_value(arrays[0].shape, 0)
        by_bytes = {"+avx512vbmi", "+avx512vnni"} <= features
        count = WIDTH if by_bytes or short else GROUP
        whole = builder.and_(size, _I64(-count))
        top = add_all(_I64(0), whole, count, by_bytes)
        return _larger(builder, top, add_all(whole, size, GROUP, False))

    return types.uint8(a, b, c, d, before, sums, base), codegen
