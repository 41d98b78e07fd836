"""Where the plugin meets Horovod: the functions that ``horovod.torch`` looks up by tensor type.

Horovod calls ``mpi_lib.horovod_torch_allreduce_async_<type>`` and later waits for the handle. For
tensors of the type `Gradient` these functions are here, and waiting, polling and resetting know
their handles. Exchanges are begun here, by whoever calls; `progress` carries them on.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from horovod.torch import mpi_ops

from horovod_gqsgd.agreement import ReductionError, translate
from horovod_gqsgd.exchange import Steps, exchange
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import device
from horovod_gqsgd.torch.compressor import Gradient
from horovod_gqsgd.torch.memory import Memories, Memory
from horovod_gqsgd.torch.message import message_of
from horovod_gqsgd.torch.operation import Operation, uncompressed
from horovod_gqsgd.torch.progress import Progress
from horovod_gqsgd.transports import horovod_torch as native
from horovod_gqsgd.transports.horovod_torch import Call, HorovodTorch

_lock = threading.RLock()
_operations: dict[int, Operation] = {}  # by handle, until waited for
_small: dict[int, str] = {}  # names, by Horovod's handle, of gradients that go uncompressed
_progress = Progress()
_memories = Memories()
_handles = itertools.count(-2, -1)  # Horovod's own are never negative
_nameless = itertools.count()


def install() -> None:
    """Put the plugin's functions in front of Horovod's; once is enough."""
    library = native.library
    if hasattr(library, "horovod_torch_allreduce_async_gqsgd_Gradient"):
        return
    for name, function in native.original.items():
        if "_async_" in name:
            own = _grouped(function) if "_grouped_allreduce_" in name else _named(function)
            setattr(library, name, own)
            start, _type = name.split("_async_")
            setattr(library, f"{start}_async_gqsgd_Gradient", _plain(start))
    library.horovod_torch_allreduce_async_gqsgd_Gradient = _allreduce
    library.horovod_torch_grouped_allreduce_async_gqsgd_Gradient = _grouped_allreduce
    library.horovod_torch_wait_and_clear = _wait
    library.horovod_torch_poll = _poll
    library.horovod_torch_join = _join
    library.horovod_torch_reset = _reset


def _next_name() -> str:
    return f"gqsgd.noname.{next(_nameless)}"


def _named(function: Callable) -> Callable:
    """Name the user's unnamed operations by a counter of their own.

    Horovod names them by its handles. Exchanges take handles at times that differ between ranks,
    and one handle more on one rank would pair unrelated operations, or hang.
    """

    def call(*arguments: Any) -> int:
        with _lock:
            return function(
                *(_next_name().encode() if isinstance(a, str) and not a else a for a in arguments)
            )

    return call


def _grouped(function: Callable) -> Callable:
    """Horovod's own function for a group; Horovod chooses it by the first member's type alone."""
    own = _named(function)

    def call(tensors: Sequence, *arguments: Any) -> int:
        marked = any(isinstance(tensor, Gradient) for tensor in tensors)
        return (_grouped_allreduce if marked else own)(tensors, *arguments)

    return call


def _plain(start: str) -> Callable:
    """Horovod's own function, for operations that go uncompressed; they refuse what they would.

    Marked tensors come here from users, and from Horovod: the gradient of a reducescatter is an
    allgather of what goes back through `decompress`.
    """
    kind = getattr(mpi_ops, f"{start.removeprefix('horovod_torch')}_function_factory")

    def call(*arguments: Any) -> int:
        plain = [_unmarked(given) for given in arguments]
        first = plain[0][0] if isinstance(plain[0], list) else plain[0]
        return getattr(native.library, mpi_ops._check_function(kind, first))(*plain)

    return call


def _unmarked(given: Any) -> Any:
    """A tensor, or the members of a group, without marks; anything else as it is."""
    if isinstance(given, (list, tuple)):
        return [_unmarked(member) for member in given]
    return given.plain() if isinstance(given, Gradient) else given


def _allreduce(
    tensor: Gradient, output: torch.Tensor, divisor: int, name: bytes | str, *arguments: Any
) -> int:
    if tensor.numel() < tensor.config.min_size:
        plain, target = _unmarked(tensor), _unmarked(output)
        if native.takes(plain) and native.takes(target):
            start = native.function("allreduce", plain)
            with _lock:
                given = name or _next_name().encode()
                handle = start(plain, target, divisor, given, *arguments)
                _small[handle] = given.decode() if isinstance(given, bytes) else given
            return handle
    return _dispatch([tensor], [output], None, divisor, name, *arguments)


def _grouped_allreduce(tensors: Sequence, outputs: Sequence, *arguments: Any) -> int:
    return _dispatch(tensors, outputs, len(tensors), *arguments)


def _dispatch(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    members: int | None,
    divisor: int,
    name: bytes | str,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
) -> int:
    with _lock:
        text = name.decode() if isinstance(name, bytes) else name
        call = Call(text or _next_name(), op, divisor, prescale, postscale, process_set, members)
        kept = bool(text)  # the buffers of a nameless call would never be used again
        memory = _memories.recall((process_set, text)) if kept else Memory()
        plain = [_unmarked(tensor) for tensor in tensors]
        targets = [
            inner if output is tensor else _unmarked(output)
            for tensor, inner, output in zip(tensors, plain, outputs, strict=True)
        ]
        place = device.of(plain)
        steps = _route(tensors, plain, targets, call, memory, place)
        operation = Operation(HorovodTorch(call), steps, place)
        handle = next(_handles)
        _operations[handle] = operation
        _progress.add(operation)
        return handle


def _route(
    tensors: Sequence[torch.Tensor],
    plain: list[torch.Tensor],
    outputs: list[torch.Tensor],
    call: Call,
    memory: Memory,
    place: device.Cuda | None,
) -> Steps:
    """Compress what is to be compressed, and send the rest as without us."""
    chosen: list[int] = []
    failure: ReductionError | None = None
    if call.compresses():
        chosen = [
            i
            for i, tensor in enumerate(tensors)
            if isinstance(tensor, Gradient) and tensor.numel() >= max(tensor.config.min_size, 1)
        ]
    rest = [i for i in range(len(tensors)) if i not in set(chosen)]
    if chosen:
        config = tensors[chosen[0]].config  # type: ignore[attr-defined]
        pairs = [plain[i] for i in chosen], [outputs[i] for i in chosen]
        try:
            yield from exchange(message_of(*pairs, config, call, memory, place))
        except ReductionError as error:
            failure = error  # perhaps here alone: the others wait for the rest
    if rest:  # last: what a rank sends in vain, as ranks that disagree would, stays in Horovod
        yield from uncompressed([plain[i] for i in rest], [outputs[i] for i in rest], call)
    if failure:
        raise failure


def _wait(handle: int) -> None:
    """Horovod's wait; for handles that are not ours, without keeping exchanges from going on."""
    operation = _operations.get(handle)
    with _waiting():
        if operation is None:
            _progress.wait_for(lambda: native.poll(handle))
        else:
            _progress.wait(operation)
    try:
        if operation is None:
            native.finish(handle)
        else:
            del _operations[handle]
            operation.deliver()
    except Exception as error:
        mpi_ops._handle_map.pop(handle, None)  # Horovod forgets it for a RuntimeError alone
        if handle not in _small:
            raise
        raise translate(_small[handle], error) from None
    finally:
        _small.pop(handle, None)


@contextmanager
def _waiting() -> Iterator[None]:
    """Count the time that somebody waits while exchanges are under way, and what leaves then."""
    start, busy, sends = time.perf_counter(), statistics.busy_seconds, statistics.sends
    yield
    statistics.wait_seconds += time.perf_counter() - start - (statistics.busy_seconds - busy)
    statistics.late_sends += statistics.sends - sends


def _poll(handle: int) -> int:
    operation = _operations.get(handle)
    return native.original["horovod_torch_poll"](handle) if operation is None else operation.done


def _join(*arguments: Any) -> int:
    """Horovod's join, once no exchange is under way: a rank that has joined sends nothing more."""
    with _waiting():
        _progress.drain()
    return native.original["horovod_torch_join"](*arguments)


def _reset() -> None:
    """Forget everything, as Horovod does when it shuts down or an elastic job changes."""
    global _memories, _nameless
    with _lock:
        _operations.clear()
        _small.clear()
        _progress.clear()
        _memories, _nameless = Memories(), itertools.count()
        native.original["horovod_torch_reset"]()
