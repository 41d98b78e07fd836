"""What the exchange has done since the start, or since `Statistics.reset`."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

_lock = threading.Lock()


@dataclass
class Statistics:
    """Totals over all compressed tensors of this process.

    ``raw_bytes`` are those of the gradients; ``norm_bytes``, ``word_bytes`` and ``code_bytes``
    those handed to Horovod for norms, for linear and for exponential levels. ``sent_bytes`` are
    what this rank sends to others for all of them, with allreduce and allgather in rings, and
    ``plain_bytes`` what it would send uncompressed. ``late_sends`` are those of ``sends`` that
    left while somebody waited; the others left before, as a rule during the backward pass. In
    TensorFlow nobody waits: its executor goes on with whatever is ready.
    """

    tensors: int = 0
    raw_bytes: int = 0
    plain_bytes: float = 0
    norm_bytes: int = 0
    word_bytes: int = 0
    code_bytes: int = 0
    sent_bytes: float = 0
    alltoalls: int = 0
    sends: int = 0
    late_sends: int = 0
    norm_seconds: float = 0.0
    encode_seconds: float = 0.0
    wait_seconds: float = 0.0
    reduce_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than uncompressed."""
        return self.plain_bytes / max(self.sent_bytes, 1)

    @property
    def busy_seconds(self) -> float:
        """Time in kernels."""
        return self.norm_seconds + self.encode_seconds + self.reduce_seconds + self.decode_seconds

    def reset(self) -> None:
        """Start from zero."""
        for field in fields(self):
            setattr(self, field.name, field.default)

    def add(self, name: str, value: float) -> None:
        """Add to a total, which other threads may do at the same time."""
        with _lock:
            setattr(self, name, getattr(self, name) + value)

    def begin(self, tensors: int, raw_bytes: int, n: int) -> None:
        """Count the tensors of a call on n ranks."""
        self.tensors += tensors
        self.raw_bytes += raw_bytes
        self.plain_bytes += 2 * (n - 1) / n * raw_bytes

    def allreduce(self, what: str, handed: int, n: int) -> None:
        """Count an allreduce of ``handed`` bytes of norms or words."""
        self._count(what, handed, 2 * (n - 1) / n * handed)

    def allgather(self, what: str, handed: int, n: int) -> None:
        """Count an allgather to which this rank contributes ``handed`` bytes."""
        self._count(what, handed, (n - 1) * handed)

    def alltoall(self, what: str, handed: int, kept: int) -> None:
        """Count an alltoall of ``handed`` bytes, of which ``kept`` stay at this rank."""
        self.alltoalls += 1
        self._count(what, handed, handed - kept)

    def _count(self, what: str, handed: int, sent: float) -> None:
        self.add(f"{what}_bytes", handed)
        self.add("sent_bytes", sent)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the time of a block to ``<phase>_seconds``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(f"{phase}_seconds", time.perf_counter() - start)


#: The totals of this process.
statistics = Statistics()
