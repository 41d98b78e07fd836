"""Reading and writing device arrays: without wrap-around of indices, four elements at a time.

A plain ``array[i]`` of a signed index costs three instructions to allow for ``i < 0``. Four
elements side by side are one load of 16 bytes (of 8 for 16-bit types); their index must be a
multiple of four and the array aligned, which `launch` sees to.

The CUDA simulator runs kernels as plain Python, where intrinsics have no meaning: there the same
names are Python functions.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from horovod_gqsgd.kernels.casts import as_float32, as_item_of
from horovod_gqsgd.kernels.scalars import f32, inline

_I64 = ir.IntType(64)

SIMULATED = bool(numba.config.ENABLE_CUDASIM)


def _pointer(context, builder, array_type, array, index):
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.gep(data, [index])


def _pointer4(context, builder, array_type, array, index):
    pointer = _pointer(context, builder, array_type, array, index)
    four = ir.VectorType(context.get_data_type(array_type.dtype), 4)
    return builder.bitcast(pointer, four.as_pointer()), four, 4 * array_type.dtype.bitwidth // 8


@intrinsic
def _item(typing_context, array, index):
    def codegen(context, builder, signature, arguments):
        return builder.load(_pointer(context, builder, array, *arguments))

    return array.dtype(array, types.int64), codegen


@intrinsic
def _items4(typing_context, array, index):
    def codegen(context, builder, signature, arguments):
        pointer, four, align = _pointer4(context, builder, array, *arguments)
        if array.dtype.bitwidth == 16:  # a vector of float16 would be loaded in two halves
            loaded = builder.load(builder.bitcast(pointer, _I64.as_pointer()), align=align)
            shifted = [builder.lshr(loaded, _I64(16 * i)) for i in range(4)]
            parts = [builder.trunc(each, four.element) for each in shifted]
        else:
            loaded = builder.load(pointer, align=align)
            parts = [builder.extract_element(loaded, ir.IntType(32)(i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(array.dtype, 4)(array, types.int64), codegen


@intrinsic
def _put(typing_context, array, index, value):
    def codegen(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(context, builder, array, *arguments[:2]))

    return types.void(array, types.int64, array.dtype), codegen


@intrinsic
def _put4(typing_context, array, index, a, b, c, d):
    def codegen(context, builder, signature, arguments):
        pointer, four, align = _pointer4(context, builder, array, *arguments[:2])
        vector = ir.Constant(four, ir.Undefined)
        for i, value in enumerate(arguments[2:]):
            vector = builder.insert_element(vector, value, ir.IntType(32)(i))
        builder.store(vector, pointer, align=align)

    item = array.dtype
    return types.void(array, types.int64, item, item, item, item), codegen


@intrinsic
def _eight(typing_context, array, index):
    def codegen(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, *arguments)
        return builder.load(builder.bitcast(pointer, _I64.as_pointer()), align=8)

    return types.uint64(array, types.int64), codegen


@intrinsic
def _put_eight(typing_context, array, index, value):
    def codegen(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, *arguments[:2])
        builder.store(arguments[2], builder.bitcast(pointer, _I64.as_pointer()), align=8)

    return types.void(array, types.int64, types.uint64), codegen


#: NaN as NumPy rounds it to each type; a GPU has others.
_NAN = {types.float32: np.nan, types.float64: np.nan, types.int16: 0x7E00, types.uint16: 0x7FC0}


@intrinsic
def _nan_of(typing_context, array):
    def codegen(context, builder, signature, arguments):
        return context.get_data_type(array.dtype)(_NAN[array.dtype])

    return array.dtype(array), codegen


@inline
def _narrow(array, value):
    return _nan_of(array) if value != value else as_item_of(array, value)


if SIMULATED:
    _widened = numba.njit(lambda value: as_float32(value))
    _rounded = numba.njit(lambda array, value: as_item_of(array, value))

    def device(function):
        """A function of device code that takes arrays."""
        return function

    def item(array, index):
        """``array[index]``, for an index from 0 up."""
        return array[index]

    def items4(array, index):
        """Four elements from ``index`` on, a multiple of four."""
        return tuple(array[index + i] for i in range(4))

    def put(array, index, value):
        """``array[index] = value``."""
        array[index] = value

    def put4(array, index, a, b, c, d):
        """Store four elements from ``index`` on, a multiple of four."""
        for i, value in enumerate((a, b, c, d)):
            array[index + i] = value

    def eight(array, index):
        """Eight bytes of a uint8 array from ``index`` on, a multiple of eight."""
        return np.array([array[index + i] for i in range(8)], np.uint8).view(np.uint64)[0]

    def put_eight(array, index, value):
        """Store eight bytes from ``index`` on, a multiple of eight."""
        for i, byte in enumerate(np.array([value], np.uint64).view(np.uint8)):
            array[index + i] = byte

    def widen(value):
        """A float32 from an element of any gradient type."""
        return f32(_widened(value))

    def narrow(array, value):
        """Round a float32 to what an element of ``array`` is stored as."""
        return _rounded(np.empty(0, array.dtype), f32(value))
else:
    device, item, items4, put, put4 = inline, _item, _items4, _put, _put4
    eight, put_eight = _eight, _put_eight
    widen, narrow = as_float32, _narrow
