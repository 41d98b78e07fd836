"""What stays from step to step: counters of calls by name, and memory that tensors share.

Horovod keeps the functions that it has traced for ever, and TensorFlow what stages call: memory
that belonged to an exchange would never be given back. So it belongs to nobody here.
"""

import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

#: TensorFlow takes over arrays that begin at a multiple of this many bytes, and copies others.
ALIGNMENT = 64

#: Pieces of memory for one purpose: a training loop that keeps the last result needs two.
PIECES = 2

#: Seconds after which memory is given back that nobody has asked for, as that of a model that is
#: trained no more: to get it anew is nothing against a step that takes as long.
PATIENCE = 30.0


@dataclass
class Memory:
    """Of one name in a process set."""

    step: int = 0
    failure: Exception | None = None  # of the reduction in this step


_memories: dict[tuple[int, str], Memory] = {}


def recall(process_set: int, name: str) -> Memory:
    """The memory of a name in a process set."""
    return _memories.setdefault((process_set, name), Memory())


class Purpose(NamedTuple):
    """What a buffer is for; models that share names differ in sizes."""

    process_set: int
    name: str
    role: str
    nbytes: int


@dataclass
class Kept:
    """Memory for one purpose, and when somebody asked for it last."""

    owners: list[np.ndarray]
    used: float


class Store:
    """Buffers of earlier steps, those first that nobody has asked for longest.

    Nobody counts the views of a tensor's memory but Python: a buffer serves again when its owner
    has none.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[Purpose, Kept] = OrderedDict()

    def buffer(
        self, process_set: int, name: str, role: str, size: int, dtype: DTypeLike
    ) -> np.ndarray:
        """A flat array: in memory of an earlier step, unless somebody still has views of it."""
        purpose = Purpose(process_set, name, role, size * np.dtype(dtype).itemsize)
        kept = self.kept.setdefault(purpose, Kept([], 0.0))
        kept.used = time.monotonic()
        self.kept.move_to_end(purpose)
        self._give_back(kept.used - PATIENCE)
        for owner in kept.owners:
            # Without views there are three references: the list's, ours and the argument.
            if sys.getrefcount(owner) == 3:
                break
        else:
            owner = np.empty(purpose.nbytes + ALIGNMENT, np.uint8)
            kept.owners = [*kept.owners, owner][-PIECES:]
        start = -owner.ctypes.data % ALIGNMENT
        return owner[start : start + purpose.nbytes].view(dtype)

    def _give_back(self, time: float) -> None:
        """Forget what nobody has asked for since then."""
        while next(iter(self.kept.values())).used < time:
            self.kept.popitem(last=False)


#: The buffers of this process.
store = Store()
