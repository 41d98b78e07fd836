"""Horovod's native functions for torch, as they were before a seam put others in front of them."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from horovod.common.process_sets import _temp_process_set_object
from horovod.torch import mpi_ops
from horovod.torch.mpi_ops import Average, Max, Sum

library = mpi_ops.mpi_lib
original = {
    name: getattr(library, name) for name in dir(library) if name.startswith("horovod_torch_")
}

#: Types that Horovod sums for torch.
SUMMABLE = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64)


def takes(tensor: torch.Tensor) -> bool:
    """Whether Horovod can reduce a tensor as it is."""
    return tensor.dtype in SUMMABLE and tensor.is_contiguous()


def function(operation: str, tensor: torch.Tensor) -> Callable[..., int]:
    """The native function ``horovod_torch_<operation>_async_<type>`` for a plain tensor."""
    return original[f"horovod_torch_{operation}_async_{tensor.type().replace('.', '_')}"]


def allreduce(
    what: torch.Tensor | Sequence[torch.Tensor],
    name: str,
    op: int,
    process_set: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    divisor: int = 1,
) -> int:
    """Start an allreduce of a tensor, or of a group, in place; returns Horovod's handle."""
    if isinstance(what, torch.Tensor):
        start = function("allreduce", what)
    else:
        start = function("grouped_allreduce", what[0])
    return start(what, what, divisor, name.encode(), op, prescale, postscale, process_set)


def poll(waiting: Any) -> bool:
    """Whether `finish` would return at once, of a handle or of an event of a GPU."""
    if not isinstance(waiting, int):
        return waiting.query()
    return original["horovod_torch_poll"](waiting) != 0


def poll_address() -> int:
    """Where the compiled `poll` is, as kernels call it; 0 if this build of Horovod hides it.

    It must not be asked for a handle that Horovod has forgotten: it would throw a C++ exception.
    """
    try:
        found = ctypes.CDLL(library.__file__)["_ZN7horovod5torch10PollHandleEi"]
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def finish(waiting: Any) -> None:
    """Wait for an operation and forget it; raises RuntimeError where it failed."""
    if isinstance(waiting, int):
        original["horovod_torch_wait_and_clear"](waiting)


def world(process_set: int) -> tuple[int, int]:
    """Rank in a process set, and its size; read at every call, as elastic jobs change it."""
    members = _temp_process_set_object(process_set)
    return members.rank(), members.size()


def ranks(process_set: int) -> list[int] | None:
    """The members of a process set; None for that of all ranks, where they are in order."""
    if process_set == 0:
        return None
    return mpi_ops._basics._get_process_set_ids_and_ranks()[process_set]


class Call(NamedTuple):
    """What Horovod's Python layer asked for, besides the tensors."""

    name: str
    op: int
    divisor: int
    prescale: float
    postscale: float
    process_set: int
    members: int | None = None  # of a group

    def compresses(self) -> bool:
        """Whether the operation is one that can, and this rank has others to talk to."""
        return self.op in (Average, Sum) and world(self.process_set)[1] > 1

    def factor(self, n: int) -> float:
        """What the mean is multiplied by at decode."""
        scale = self.prescale * self.postscale / self.divisor
        return scale if self.op == Average else scale * n


@dataclass(frozen=True, slots=True)
class HorovodTorch:
    """The collectives of one call: see `transports.base.Transport`."""

    call: Call

    @property
    def name(self) -> str:
        """The call's."""
        return self.call.name

    def announce(self, head: torch.Tensor) -> int:
        """Start the first collective as a rank that does not compress would.

        Under the name of the tensor or, member for member, of the group: Horovod tells such ranks
        that they differ, where they would wait for one another otherwise.

        Of a group Horovod tells what became of the member that it completed last. So all differ if
        one does: each has the length of the head in its shape, and no elements.
        """
        call = self.call
        if call.members is None:
            return allreduce(head, call.name, Max, call.process_set)
        other = head.new_empty(len(head), 0)
        members = [head, *[other.clone() for _ in range(call.members - 1)]]
        return allreduce(members, call.name, Max, call.process_set)

    def sum(self, tag: str, payload: torch.Tensor) -> int:
        """In place."""
        return allreduce(payload, self._below(tag), Sum, self.call.process_set)

    def gather(self, tag: str, rows: torch.Tensor, out: torch.Tensor) -> int:
        """Rows of all ranks; Horovod gives ``out`` their number."""
        start = function("allgather", rows)
        return start(rows, out, self._below(tag).encode(), self.call.process_set)

    def scatter(
        self, tag: str, rows: torch.Tensor, out: torch.Tensor, bounds: Sequence[int]
    ) -> int:
        """Rows to their owners."""
        start = function("alltoall", rows)
        splits = torch.tensor(bounds, dtype=torch.int32).diff()
        received = torch.empty(0, dtype=torch.int32)  # known beforehand to the one who calls
        where = (self._below(tag).encode(), self.call.process_set)
        return start(rows, splits, out, received, *where)

    def _below(self, tag: str) -> str:
        return f"{self.call.name}.gq.{tag}"

    def ready(self, waiting: Any) -> bool:
        """Of a handle or of an event of a GPU."""
        return poll(waiting)

    def finish(self, waiting: Any) -> None:
        """Raises RuntimeError where an operation failed."""
        finish(waiting)
