"""Waiting for another library without the GIL, which polling from Python would keep taking."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from horovod_gqsgd.kernels.jit import serial

_I8, _I32 = ir.IntType(8), ir.IntType(32)


def _caller(result, returns):
    """An intrinsic that calls the C function of an int at an address."""

    @intrinsic
    def call(typing_context, address, argument):
        def codegen(context, builder, signature, arguments):
            function = ir.FunctionType(result, [_I32]).as_pointer()
            value = builder.call(builder.inttoptr(arguments[0], function), [arguments[1]])
            return value if result is _I32 else builder.icmp_unsigned("!=", value, _I8(0))

        return returns(types.uint64, types.int32), codegen

    return call


_is_done = _caller(_I8, types.boolean)
_usleep = _caller(_I32, types.int32)


@serial
def wait_for_any(poll, usleep, handles, changes, seen, pause, longest, limit):
    """Until ``poll(handle)`` is true of one, ``changes[0]`` is not ``seen``, or time is up.

    ``poll`` and ``usleep`` are addresses of C functions, times are in microseconds. Pauses between
    two looks grow from ``pause`` to ``longest``.
    """
    slept = 0
    while slept < limit and changes[0] == seen:
        for handle in handles:
            if _is_done(poll, handle):
                return
        _usleep(usleep, pause)
        slept += pause
        pause = min(longest, pause + pause // 2)
