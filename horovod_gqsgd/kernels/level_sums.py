"""Sums of integer levels, eight codes of four rows at a time, written as LLVM vectors.

A level ``2^40·b^-k`` is a float64 whose exponent falls by one every ``octave`` indices: its bits
are an entry of a table that the low bits of the index choose, less the index shifted to the
exponent. From scalar code LLVM would make that choice by comparisons; AVX-512 has an instruction
for it. Levels are rounded to integers before they are added, and float64 holds their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from horovod_gqsgd.exponential import UNIT
from horovod_gqsgd.kernels.bases import octave_of

#: Codes that `level_sums` takes at once: whole groups, of which packed rows consist.
WIDTH = 8
#: So many rows have sums that float64 holds.
MOST_ROWS = 2 ** (53 - UNIT)

_BYTES, _WORDS, _FLOATS, _DOUBLES = (
    ir.VectorType(item, WIDTH)
    for item in (ir.IntType(8), ir.IntType(64), ir.FloatType(), ir.DoubleType())
)


def _all(kind: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * WIDTH)


def _repeat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    kind = ir.VectorType(value.type, WIDTH)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, one, zeros)


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(get_or_insert_function(builder.module, kind, name), arguments)


def _entries(octave: int) -> tuple[list[int], int]:
    """The table, and how far an index is shifted: it lowers the exponent by 1/octave.

    Entries are of period ``octave``: they make good what the low bits of the index take away.
    """
    shift = 52 - octave.bit_length() + 1
    low = np.arange(WIDTH)
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
    last = _repeat(builder, last)
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


@intrinsic
def level_sums(typing_context, a, b, c, d, at, sums, base):
    """Sum the integer levels of codes ``at`` … ``at + 7`` of four rows.

    Float64 ``sums`` are added to, float32 ones are set.
    """
    octave, once = octave_of(base), sums.dtype == types.float32

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        def place(i: int, kind: ir.VectorType) -> ir.Value:
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(builder.gep(array.data, [arguments[4]]), kind.as_pointer())

        last = builder.extract_value(arguments[6], base.fields.index("last"))
        last = builder.trunc(last, ir.IntType(8))
        avx512 = "+avx512f" in context.codegen().magic_tuple()[2]
        total = None
        for i in range(4):
            codes = builder.load(place(i, _BYTES), align=1)
            level = _levels(builder, octave, codes, last, avx512)
            total = level if total is None else builder.fadd(total, level)
        if once:
            builder.store(builder.fptrunc(total, _FLOATS), place(5, _FLOATS), align=4)
        else:
            where = place(5, _DOUBLES)
            builder.store(builder.fadd(builder.load(where, align=8), total), where, align=8)
        return context.get_dummy_value()

    return types.void(a, b, c, d, types.int64, sums, base), codegen
