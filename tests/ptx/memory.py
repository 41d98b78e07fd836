"""Memory of the interpreter: buffers with addresses, each access checked as hardware would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: A buffer's address is its number times this; far apart, so that no overrun meets a neighbour.
REACH = 1 << 40
LINE = 16  # bytes of the widest access
POISON = 0xA5


class MemoryFault(IndexError):
    """An access outside a buffer, or one that is not aligned to its size."""


def rounded_up(size: int) -> int:
    """Bytes of whole lines."""
    return -(-size // LINE) * LINE


class Buffer:
    """Accessible bytes from offset ``start`` up to ``stop`` of an aligned address.

    Only they are backed: a kernel can run at the far end of a tensor of billions of elements,
    or on a tensor that begins where no vector load may.
    """

    def __init__(self, address: int, start: int, content: np.ndarray) -> None:
        self.address, self.start, self.stop = address, start, start + content.size
        self.window = start // LINE * LINE
        self.backing = np.full(rounded_up(self.stop - self.window), POISON, np.uint8)
        self.content[:] = content

    @property
    def content(self) -> np.ndarray:
        return self.backing[self.start - self.window :][: self.stop - self.start]

    def cells(self, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """Indices into the backing, in cells of ``width`` bytes: rows of ``count``."""
        offsets, size = addresses - np.uint64(self.address), width * count
        outside = (offsets < self.start) | (offsets + np.uint64(size) > self.stop)
        if outside.any():
            where = int(offsets[outside][0]) - self.start
            raise MemoryFault(f"{size} bytes at offset {where} of {self.stop - self.start}")
        if (addresses % np.uint64(size)).any():
            raise MemoryFault(f"{size} bytes at an address that is no multiple of {size}")
        first = ((offsets - np.uint64(self.window)) // np.uint64(width)).astype(np.int64)
        return first[:, None] + np.arange(count)

    def view(self, width: int) -> np.ndarray:
        return self.backing.view(f"u{width}")


class Global:
    """The global space: one buffer for every array."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def allocate(self, content: np.ndarray, start: int = 0) -> Buffer:
        """Copy ``content`` (flat uint8) to a new buffer, ``start`` bytes behind its address."""
        self.buffers.append(Buffer((len(self.buffers) + 1) * REACH, start, content))
        return self.buffers[-1]

    def cells(
        self, addresses: np.ndarray, width: int, count: int
    ) -> list[tuple[np.ndarray, np.ndarray | slice, np.ndarray]]:
        """(cells of a buffer, which of the addresses lie in it, their indices), by buffer."""
        numbers = addresses // np.uint64(REACH)
        parts = []
        for number in np.unique(numbers):
            if not 1 <= number <= len(self.buffers):
                raise MemoryFault(f"nothing at address {int(addresses[numbers == number][0]):#x}")
            which = numbers == number
            buffer = self.buffers[int(number) - 1]
            part = slice(None) if which.all() else np.flatnonzero(which)
            parts.append((buffer.view(width), part, buffer.cells(addresses[part], width, count)))
        return parts


class Shared:
    """The shared space: addresses count from 0 in every block of threads."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.stride = size, rounded_up(size)
        self.buffer = Buffer(0, 0, np.full(blocks * self.stride, POISON, np.uint8))

    def cells(
        self, addresses: np.ndarray, block: np.ndarray, width: int, count: int
    ) -> list[tuple[np.ndarray, np.ndarray | slice, np.ndarray]]:
        """As in `Global`, for the ``block`` of each address."""
        addresses = addresses.astype(np.uint64)
        if (addresses + np.uint64(width * count) > self.size).any():
            raise MemoryFault(f"{width * count} bytes beyond {self.size} bytes of shared memory")
        flat = addresses + block.astype(np.uint64) * np.uint64(self.stride)
        return [(self.buffer.view(width), slice(None), self.buffer.cells(flat, width, count))]


Cells = list[tuple[np.ndarray, np.ndarray | slice, np.ndarray]]


def load(parts: Cells, shape: tuple[int, int], width: int) -> np.ndarray:
    """Raw cells, one row an address."""
    result = np.empty(shape, f"u{width}")
    for memory, part, cells in parts:
        result[part] = memory[cells]
    return result


def store(parts: Cells, values: np.ndarray) -> None:
    """Write rows of raw cells."""
    for memory, part, cells in parts:
        memory[cells] = values[part]


def update(parts: Cells, compute: Callable[..., np.ndarray], *sources: np.ndarray) -> np.ndarray:
    """Atomic operations, one thread after the other; returns what each found."""
    found = np.empty_like(sources[0])
    for memory, part, cells in parts:
        typed = memory.view(found.dtype)
        order = np.arange(found.size)[part]
        for thread, cell in zip(order, cells[:, 0], strict=True):
            found[thread] = typed[cell]
            typed[cell : cell + 1] = compute(
                typed[cell : cell + 1], *(s[thread : thread + 1] for s in sources)
            )
    return found
