"""Horovod's own native functions, as they were before `seam` put others in front of them."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from horovod.common.process_sets import _temp_process_set_object
from horovod.torch import mpi_ops

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


def allgather(tensor: torch.Tensor, output: torch.Tensor, name: str, process_set: int) -> int:
    """Start an allgather."""
    return function("allgather", tensor)(tensor, output, name.encode(), process_set)


def alltoall(
    tensor: torch.Tensor, splits: torch.Tensor, output: torch.Tensor, name: str, process_set: int
) -> int:
    """Start an alltoall: ``splits`` (int32) rows of ``tensor`` to every rank."""
    start = function("alltoall", tensor)
    received_splits = torch.empty(0, dtype=torch.int32)  # known beforehand to the one who calls
    return start(tensor, splits, output, received_splits, name.encode(), process_set)


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


def array(tensor: torch.Tensor) -> np.ndarray:
    """A flat NumPy view of a contiguous CPU tensor; bfloat16 as the uint16 of its bits."""
    flat = tensor.detach().view(-1)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()
