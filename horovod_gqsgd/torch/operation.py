"""Exchanges under way: an `Operation` goes on whenever what it waits for is ready.

The thread of `progress` calls it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from horovod_gqsgd.agreement import translate
from horovod_gqsgd.exchange import Steps
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.transports import horovod_torch as native
from horovod_gqsgd.transports.base import Transport
from horovod_gqsgd.transports.horovod_torch import Call


class Operation:
    """An exchange under way; on the stream of a GPU that it began on, if tensors are there."""

    def __init__(self, transport: Transport, steps: Steps, place: Cuda | None = None) -> None:
        self.transport = transport
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
                if not self.transport.ready(self._waiting):
                    break
                moved = True
                with self._active():
                    self.transport.finish(self._waiting)
                    self._waiting = next(self._steps, None)
                    if self._waiting is None:
                        self._filled = self._place.event() if self._place else None
                        self.done = True  # last: another thread may be waiting for it
            except BaseException as error:  # whoever waits is to know, and the thread to go on
                self.fail(error)
        return moved

    def fail(self, error: BaseException) -> None:
        """Be done, with an error for whoever waits."""
        self.error, self.done = translate(self.transport.name, error), True

    def deliver(self) -> None:
        """Raise what went wrong; else let what the caller does next see the outputs filled."""
        if self.error is not None:
            raise self.error
        if self._place:
            self._place.await_here(self._filled)


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
