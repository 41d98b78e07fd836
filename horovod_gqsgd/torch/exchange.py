"""Exchanges, written as they happen: each ``yield`` waits for one of Horovod's handles.

Nobody blocks on the way. `Operation` goes on with an exchange whenever the handle it waits for
has completed; the thread of `progress` calls it.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from horovod.torch.mpi_ops import Average

from horovod_gqsgd.agreement import translate
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.device import Cuda

#: What an exchange waits for: Horovod's handles, and events of a GPU.
Steps = Generator[Any, None, Any]


class Call(NamedTuple):
    """What Horovod's Python layer asked for, besides the tensors."""

    name: str
    op: int
    divisor: int
    prescale: float
    postscale: float
    process_set: int
    members: int | None = None  # of a group

    def factor(self, n: int) -> float:
        """What the mean is multiplied by at decode."""
        scale = self.prescale * self.postscale / self.divisor
        return scale if self.op == Average else scale * n


class Operation:
    """An exchange under way; on the stream of a GPU that it began on, if tensors are there."""

    def __init__(self, name: str, steps: Steps, place: Cuda | None = None) -> None:
        self.name = name
        self.done = False
        self.error: BaseException | None = None
        self._place = place
        self._filled: Any = None
        self._steps = steps
        with self._active():  # what goes wrong at the start is the caller's to know
            self._waiting = next(steps)

    @property
    def handle(self) -> int | None:
        """Horovod's handle that it waits for, if it waits for one."""
        return self._waiting if isinstance(self._waiting, int) and not self.done else None

    def _active(self) -> AbstractContextManager[None]:
        return self._place.active() if self._place else nullcontext()

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether that was any way at all."""
        moved = False
        while not self.done:
            try:
                if not native.poll(self._waiting):
                    break
                moved = True
                with self._active():
                    native.finish(self._waiting)
                    self._waiting = next(self._steps, None)
                    if self._waiting is None:
                        self._filled = self._place.event() if self._place else None
                        self.done = True  # last: another thread may be waiting for it
            except BaseException as error:  # whoever waits is to know, and the thread to go on
                self.fail(error)
        return moved

    def fail(self, error: BaseException) -> None:
        """Be done, with an error for whoever waits."""
        self.error, self.done = translate(self.name, error), True

    def deliver(self) -> None:
        """Raise what went wrong; else let what the caller does next see the outputs filled."""
        if self.error is not None:
            raise self.error
        if self._place:
            self._place.await_here(self._filled)


def overlapped(streams: Iterable[Steps], at_once: int = 2) -> Steps:
    """Exchanges of the same kind, some at a time: one's kernels run while the other's bytes travel.

    More than two allreduces Horovod would fuse, and deliver together.
    """
    rest = iter(streams)
    waiting = deque((next(stream), stream) for stream in islice(rest, at_once))
    while waiting:
        handle, stream = waiting.popleft()
        yield handle
        try:
            for following in chain([stream], rest):
                with suppress(StopIteration):
                    waiting.append((next(following), following))
                    break
        except Exception:
            yield from [handle for handle, _stream in waiting]  # ranks fail together: let them end
            raise


def uncompressed(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], call: Call
) -> Steps:
    """As without us, also for bfloat16 and for layouts that Horovod refuses."""
    work = [_summable(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)]
    scale = (call.prescale, call.postscale, call.divisor)
    if call.members is None:
        named: dict[str, Any] = {call.name: work[0]}
    elif call.members == len(work):
        named = {call.name: work}
    else:  # others of the group are compressed
        named = {f"{call.name}.gq.plain.{i}": tensor for i, tensor in enumerate(work)}
    yield from [
        native.allreduce(what, name, call.op, call.process_set, *scale)
        for name, what in named.items()
    ]
    for output, tensor in zip(outputs, work, strict=True):
        if tensor.data_ptr() != output.data_ptr():
            output.copy_(tensor)


def _summable(tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """What Horovod can reduce in place of ``tensor``: itself if that is where the output goes."""
    if native.takes(tensor) and tensor.data_ptr() == output.data_ptr():
        return tensor
    dtype = tensor.dtype if tensor.dtype in native.SUMMABLE else torch.float32
    return tensor.to(dtype, copy=True).contiguous()
