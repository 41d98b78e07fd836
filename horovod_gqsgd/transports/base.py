"""What an exchange asks of a transport."""

from collections.abc import Sequence
from typing import Any, Protocol


class Transport(Protocol):
    """Collectives among the ranks of one call, paired by tags below the call's name.

    Each starts and returns a handle. Arrays are of the adapter's kind and contiguous: flat, or rows
    where they may be divided.
    """

    @property
    def name(self) -> str:
        """The call's, for errors."""

    def announce(self, head: Any) -> Any:
        """Max in place, the first of a call: where ranks that do something else are met."""

    def sum(self, tag: str, payload: Any) -> Any:
        """Sum in place."""

    def gather(self, tag: str, rows: Any, out: Any) -> Any:
        """The rows of all ranks, which may differ in number, one after the other.

        ``out`` has that many rows when the handle is ready.
        """

    def scatter(self, tag: str, rows: Any, out: Any, bounds: Sequence[int]) -> Any:
        """The rows from ``bounds[r]`` up to ``bounds[r + 1]`` of all ranks to rank r."""

    def ready(self, handle: Any) -> bool:
        """Whether `finish` would return at once."""

    def finish(self, handle: Any) -> None:
        """Wait, and raise what went wrong."""
