"""Loads and stores of every gradient type, without a float32 copy of the tensor.

Numba's CPU target has no half precision, so float16 arrays come as int16 and bfloat16 arrays as
uint16 views of their bits.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32, _HALF = ir.FloatType(), ir.HalfType()


def view(x: np.ndarray) -> np.ndarray:
    """The array a kernel takes for ``x``: float16 becomes int16, the others stay."""
    if x.dtype == np.float16:
        return x.view(np.int16)
    if x.dtype in (np.float32, np.float64, np.uint16):
        return x
    raise TypeError(f"gradients of type {x.dtype} cannot be quantised: cast them to float32")


@intrinsic
def as_float32(typing_context, value):
    """A float32 from float32, float64, int16 (bits of float16) or uint16 (bits of bfloat16)."""

    def codegen(context, builder, signature, arguments):
        (given,) = arguments
        if value == types.float32:
            return given
        if value == types.float64:
            return builder.fptrunc(given, _F32)
        if value == types.int16:
            return builder.fpext(builder.bitcast(given, _HALF), _F32)
        return builder.bitcast(builder.shl(builder.zext(given, _I32), _I32(16)), _F32)

    return types.float32(value), codegen


@intrinsic
def as_item_of(typing_context, array, value):
    """Round a float32 (to nearest, ties to even) to what an element of ``array`` is stored as."""
    item = array.dtype

    def codegen(context, builder, signature, arguments):
        given = arguments[1]
        if item == types.float32:
            return given
        if item == types.float64:
            return builder.fpext(given, ir.DoubleType())
        if item == types.int16:
            return builder.bitcast(builder.fptrunc(given, _HALF), _I16)
        bits = builder.bitcast(given, _I32)
        even = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        bits = builder.add(bits, builder.add(even, _I32(0x7FFF)))
        return builder.trunc(builder.lshr(bits, _I32(16)), _I16)

    return item(array, types.float32), codegen


@intrinsic
def bits_of(typing_context, value):
    """The bits of a float32 as uint32."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _I32)

    return types.uint32(types.float32), codegen


@intrinsic
def float_of(typing_context, value):
    """The float32 that has the given bits."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _F32)

    return types.float32(types.uint32), codegen


@intrinsic
def load_word(typing_context, array, at):
    """The uint64 of the bytes from ``at`` on, at any address; little-endian, as the layout is."""

    def codegen(context, builder, signature, arguments):
        pointer = _word_at(context, builder, signature, arguments)
        return builder.load(pointer, align=1)

    return types.uint64(array, types.intp), codegen


@intrinsic
def store_word(typing_context, array, at, word):
    """Write the eight bytes of a uint64 from ``at`` on."""

    def codegen(context, builder, signature, arguments):
        pointer = _word_at(context, builder, signature, arguments)
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


def _word_at(context, builder, signature, arguments):
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), _I64.as_pointer())


@intrinsic
def nearest(typing_context, value):
    """The int32 nearest to a float32, ties to even."""

    def codegen(context, builder, signature, arguments):
        module = builder.module
        if module.triple.startswith("nvptx"):  # one instruction there, and no llvm.rint
            convert = ir.FunctionType(_I32, [_F32])
            name = "llvm.nvvm.f2i.rn"
            return builder.call(cgutils.get_or_insert_function(module, convert, name), arguments)
        whole = builder.call(module.declare_intrinsic("llvm.rint", [_F32]), arguments)
        return builder.fptosi(whole, _I32)

    return types.int32(types.float32), codegen
