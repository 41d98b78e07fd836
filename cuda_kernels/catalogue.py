"""Every kernel in every variant, as it is compiled: to check them all, with or without a GPU.

Importing this needs ``numba.cuda``; compiling an entry needs no driver:
``numba.cuda.compile_ptx(entry.function, entry.signature, cc=(8, 0))``.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from numba import types

from horovod_gqsgd.cuda_kernels import exponential, groups, linear, norm, prepare, reduce
from horovod_gqsgd.cuda_kernels.draws import DRAWS

#: Gradient types as kernels see them (`kernels.casts.view`).
ITEMS = {
    "float32": types.float32,
    "float16": types.int16,
    "bfloat16": types.uint16,
    "float64": types.float64,
}
u8, u32, i32, i64 = types.uint8, types.uint32, types.int32, types.int64
f32, f64 = types.float32, types.float64


class Kernel(NamedTuple):
    """A kernel for one set of argument types; ``float64``: why it computes so, where it does."""

    name: str
    function: Callable
    signature: tuple
    float64: str = ""


def _array(item: types.Type) -> types.Array:
    return types.Array(item, 1, "C")


IS_FLOAT64 = "the gradient is float64, rounded to float32 at once"
SUMS = "the order and precision of the sums are part of the scheme"


def _norms() -> Iterator[Kernel]:
    for dtype, item in ITEMS.items():
        why = IS_FLOAT64 if dtype == "float64" else ""
        signature: tuple = (_array(item), _array(i32), i64, i64)
        yield Kernel(f"norm.maximum {dtype}", norm.maximum(), signature, why)
        signature = (_array(item), _array(f64), i64)
        for order in (1, 2):
            name = f"norm.total {order} {dtype}"
            yield Kernel(name, norm.total(order), signature, SUMS)
    for q, p in itertools.product((1, 2, "inf"), (1, 2, "inf")):
        if (q, p) != ("inf", "inf"):  # those maxima go straight into the exchanged vector
            source, target = (i32 if q == "inf" else f64), (i32 if p == "inf" else f64)
            signature = (_array(source), _array(target), i64)
            function = norm.contribution(q, p)
            name = f"norm.contribution {q} {p}"
            yield Kernel(name, function, signature, SUMS)


def _prepare() -> Iterator[Kernel]:
    signature: tuple = (_array(i32), i32, i32, i32, i64)
    yield Kernel("prepare.header", prepare.header(), signature)
    for p in (1, 2, "inf"):
        item = i32 if p == "inf" else f64
        signature = (_array(item), _array(i32), _array(f32), _array(u32), u32, u32, u32, u32, u32)
        why = "" if p == "inf" else SUMS
        name = f"prepare.prepare {p}"
        yield Kernel(name, prepare.prepare(p), signature, why)


def _linear() -> Iterator[Kernel]:
    for dtype, item in ITEMS.items():
        why = IS_FLOAT64 if dtype == "float64" else ""
        for rounding in DRAWS:
            signature: tuple = (_array(item), _array(f32), _array(u32), _array(i32))
            signature += (i64, i64, u32, i64, i32, u32, u32, u32, u32)
            name, function = f"linear.encode {rounding} {dtype}", linear.encode(rounding)
            yield Kernel(name, function, signature, why)
        signature = (_array(i32), _array(f32), _array(item), i64, i64, u32, i64, u32, i32, f32)
        name = f"linear.decode {dtype}"
        yield Kernel(name, linear.decode(), signature, why)


def _exponential() -> Iterator[Kernel]:
    levels = (i64, i32, u32, f32)
    for octave in (1, 2, 4):
        for dtype, item in ITEMS.items():
            why = IS_FLOAT64 if dtype == "float64" else ""
            for rounding in DRAWS:
                signature: tuple = (_array(item), _array(f32), _array(u32), _array(u8), i64, i64)
                signature += (*levels, u32, u32, u32)
                name = f"exponential.encode {octave} {rounding} {dtype}"
                function = exponential.encode(octave, rounding)
                yield Kernel(name, function, signature, why)
            signature = (_array(u8), _array(f32), _array(item), i64, i64, i64, i32, f32)
            name, function = f"exponential.decode {octave} {dtype}", exponential.decode(octave)
            yield Kernel(name, function, signature, why)


def _reduce() -> Iterator[Kernel]:
    where = (i64, i64, i64, i64, i64)
    for octave in (1, 2, 4):
        signature: tuple = (_array(u8), _array(u8), _array(u32), *where, f32, i32, u32, f32)
        function = reduce.exact(octave)
        yield Kernel(f"reduce.exact {octave}", function, signature)
        signature = (_array(u8), _array(u8), _array(u32), _array(i32), *where, i32, u32, f32)
        function = reduce.pairwise(octave)
        yield Kernel(f"reduce.pairwise {octave}", function, signature)
    signature = (_array(u32), _array(u32), i64)
    yield Kernel("reduce.dither", reduce.dither(), signature)
    signature = (_array(u8), _array(u8), i64)
    yield Kernel("groups.unpack", groups.unpack(), signature)
    yield Kernel("groups.pack", groups.pack(), signature)


def kernels() -> list[Kernel]:
    """The whole list."""
    return [*_norms(), *_prepare(), *_linear(), *_exponential(), *_reduce()]
