"""What stays from step to step for one name: the call counter and the buffers."""

import sys
from dataclasses import dataclass, field

import numpy as np

#: TensorFlow takes over arrays that begin at a multiple of this many bytes, and copies others.
ALIGNMENT = 64


@dataclass
class Memory:
    """The call counter, and memory that tensors share; nobody counts their views but Python."""

    step: int = 0
    failure: Exception | None = None  # of the reduction in this step
    owners: dict[str, np.ndarray] = field(default_factory=dict)

    def buffer(self, role: str, size: int, dtype: np.typing.DTypeLike) -> np.ndarray:
        """A flat array: the memory of the last step, unless somebody still has a view of it."""
        needed = size * np.dtype(dtype).itemsize
        owner = self.owners.get(role)
        # Without views there are three references: the dictionary's, ours and the argument.
        if owner is None or owner.size != needed + ALIGNMENT or sys.getrefcount(owner) > 3:
            owner = self.owners[role] = np.empty(needed + ALIGNMENT, np.uint8)
        start = -owner.ctypes.data % ALIGNMENT
        return owner[start : start + needed].view(dtype)


_memories: dict[tuple[int, str], Memory] = {}


def recall(process_set: int, name: str) -> Memory:
    """The memory of a name in a process set."""
    return _memories.setdefault((process_set, name), Memory())
