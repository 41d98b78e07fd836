"""What stays from call to call under a name, for as long as the name is in use."""

from dataclasses import dataclass
from typing import Any

#: A name that has been away this many times longer than it ever was before is out of use.
PATIENCE = 4


@dataclass
class Memory:
    """Of one name: the call counter, a message with its key, and how regularly it is used.

    ``last`` is the number of its last call among those of all names, ``gap`` the most calls that
    ever lay between two of its own, 0 until there have been two.
    """

    step: int = 0
    key: Any = None
    message: Any = None
    last: int = 0
    gap: int = 0

    def keep(self, message: Any) -> None:
        """Have a message for the next call, if there is reason to expect one."""
        if self.gap:
            self.message = message
        else:
            self.key = None


class Memories:
    """The memories of all names.

    Steps stay, they are numbers. Buckets hold buffers of the size of gradients, so those of names
    that are not used any more, or only once, as ``f"gradient.{step}"`` is, do not stay. A name that
    comes back after all finds its step, and its message is made again.
    """

    def __init__(self) -> None:
        self._all: dict[Any, Memory] = {}
        self._in_use: dict[Any, Memory] = {}  # those that may have a message
        self._calls = self._next_look = 0

    def recall(self, key: Any) -> Memory:
        """The memory of a name, for the call that begins."""
        self._calls += 1
        memory = self._all.setdefault(key, Memory())
        if memory.last:
            memory.gap = max(memory.gap, self._calls - memory.last)
            self._in_use[key] = memory
        memory.last = self._calls
        if self._calls >= self._next_look:
            self._forget()
            self._next_look = self._calls + len(self._in_use) + 16  # a few steps of work per call
        return memory

    def _forget(self) -> None:
        """Let go of the messages of names that are out of use."""
        for key, memory in list(self._in_use.items()):
            if self._calls - memory.last > PATIENCE * memory.gap:
                memory.key = memory.message = None
                del self._in_use[key]
