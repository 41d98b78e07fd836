"""What the exchange has done since the start, or since `Statistics.reset`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields


@dataclass
class Statistics:
    """Totals over all compressed tensors of this process.

    Bytes are those handed to Horovod; what a ring allreduce sends is 2·(n − 1)/n times as much.
    ``late_sends`` are those of ``sends`` that left while somebody waited; the others left before,
    as a rule during the backward pass.
    """

    tensors: int = 0
    raw_bytes: int = 0
    norm_bytes: int = 0
    word_bytes: int = 0
    sends: int = 0
    late_sends: int = 0
    norm_seconds: float = 0.0
    encode_seconds: float = 0.0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than uncompressed."""
        return self.raw_bytes / max(self.norm_bytes + self.word_bytes, 1)

    def reset(self) -> None:
        """Start from zero."""
        for field in fields(self):
            setattr(self, field.name, field.default)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the time of a block to ``<phase>_seconds``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            name = f"{phase}_seconds"
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


#: The totals of this process.
statistics = Statistics()
