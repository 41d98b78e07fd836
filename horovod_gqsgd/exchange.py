"""The way of a gradient, written as it happens: each ``yield`` waits for one handle.

    norms and header → agreement → section by section: encode → rounds → decode

An adapter makes a `Message` of the tensors of a call and resumes `exchange` whenever the handle
that it waits for is ready. Nobody blocks on the way.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Protocol

from horovod_gqsgd import shards
from horovod_gqsgd.agreement import ReductionError
from horovod_gqsgd.codecs import Codec, Round
from horovod_gqsgd.plan import Plan
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.transports.base import Transport

#: What an exchange waits for: handles of its transport, and events of a GPU.
Steps = Generator[Any, None, Any]


class Message(Protocol):
    """The tensors of one call where they are: on the host, or on a GPU."""

    plan: Plan
    codec: Codec
    head: Any
    sums: Any

    @property
    def transport(self) -> Transport:
        """The collectives of its call."""

    def buffer(self, role: str, size: int, dtype: Any) -> Any:
        """A flat array that stays from step to step."""

    def write(self) -> None:
        """Fill head and sums with what this rank has."""

    def inspect(self) -> Steps:
        """Raise where ranks disagree, before they know the norms."""

    def read(self) -> Steps:
        """Make of what the ranks have together what the kernels take."""

    def settle(self) -> Steps:
        """Raise where ranks disagree or have joined, if that is not known yet."""

    def sections(self, tag: str, whole: bool) -> list[tuple[Section, str]]:
        """The parts in which a payload travels, with tags for their collectives."""

    def encode(self, payload: Any, section: Section) -> None:
        """Quantise the elements of a section into their place in ``payload``."""

    def reduce(self, rows: Any, out: Any, low: int) -> None:
        """Combine the ranks' rows of the units from ``low`` on."""

    def accept(self) -> Steps:
        """Raise where `reduce` has given what is none, if that is not known yet."""

    def decode(self, payload: Any, section: Section) -> None:
        """Fill the outputs of a section."""

    def release(self) -> None:
        """Let go of the tensors."""


def exchange(message: Message) -> Steps:
    """Fill the outputs of a message with what the ranks' tensors have in common."""
    yield from _agree(message)
    codec, length = message.codec, message.plan.length
    rounds = codec.rounds(length)
    payload = message.buffer(rounds[0].tag, length, codec.dtype)
    # What is gathered in the end needs a place of its own; all else has been sent when it comes.
    gathered = rounds[-1].kind == "gather" and not rounds[-1].reduce
    result = message.buffer(rounds[-1].tag, length, codec.dtype) if gathered else payload
    sections = message.sections(rounds[0].tag, whole=rounds[0].kind == "gather")
    ways = [
        _Journey(message, payload, result, section).travel(rounds, tag) for section, tag in sections
    ]
    if len(ways) == 1:
        yield from ways[0]  # as nearly always: what follows would cost small tensors time
    else:
        # More than two sums Horovod would fuse, and deliver together. Scatters it never fuses: each
        # is carried out while others are reduced.
        yield from overlapped(ways, at_once=2 if rounds[0].kind == "sum" else len(ways))
    message.release()


def _agree(message: Message) -> Steps:
    """Exchange norms, and with them what ranks must have in common."""
    transport, head, sums = message.transport, message.head, message.sums
    message.write()
    statistics.allreduce("norm", head.nbytes + sums.nbytes, message.codec.n)
    yield transport.announce(head)
    if not message.plan.by_max:
        # Not before: a rank that differs would not take part, and they would stay in Horovod.
        yield from message.inspect()
        yield transport.sum("norm", sums)
    yield from message.read()


class _Journey:
    """A section of a message on its way from encode to decode."""

    __slots__ = (  # thousands are under way at once, which the garbage collector looks through
        "codec", "failure", "message", "part", "payload", "result", "section", "transport",
    )  # fmt: skip

    def __init__(self, message: Message, payload: Any, result: Any, section: Section) -> None:
        self.message, self.codec, self.transport = message, message.codec, message.transport
        self.payload, self.result, self.section = payload, result, section
        self.part = payload[section.low : section.high]
        self.failure: ReductionError | None = None

    def travel(self, rounds: Sequence[Round], tag: str) -> Steps:
        """Encode, go through the rounds, decode."""
        self.message.encode(self.payload, self.section)
        if self.codec.needs_all:
            yield from self.message.settle()  # what follows is not for ranks that have joined
        for i, each in enumerate(rounds):
            tag = f"{tag}.{each.tag}" if i else tag
            statistics.sends += 1
            yield from getattr(self, each.kind)(tag, each.reduce)
        if self.failure:
            raise self.failure
        self.message.decode(self.result, self.section)

    def sum(self, tag: str, _reduce: bool) -> Steps:
        """Add up what the ranks have."""
        statistics.allreduce(self.codec.what, self.part.nbytes, self.codec.n)
        handle = self.transport.sum(tag, self.part)
        yield from self.message.settle()
        yield handle

    def scatter(self, tag: str, _reduce: bool) -> Steps:
        """Shards to their owners; each reduces its own."""
        codec, unit, low = self.codec, self.codec.unit, self.section.low
        bounds = shards.bounds(len(self.part) // unit, codec.n)
        first, last = bounds[codec.rank : codec.rank + 2]
        share = (last - first) * unit
        rows = self.message.buffer(f"shard {low}", codec.n * share, codec.dtype)
        statistics.alltoall(codec.what, self.part.nbytes, share * self.part.itemsize)
        yield self.transport.scatter(tag, self.part.reshape(-1, unit), rows, bounds)
        mine = self.message.buffer(f"mine {low}", share, codec.dtype)
        try:
            yield from self._reduce(rows, mine, low // unit + first)
        except ReductionError as error:
            # The others wait for this shard: its absence tells them that there will be none.
            self.failure, mine = error, mine[:0]
        self.part = mine

    def gather(self, tag: str, reduce: bool) -> Steps:
        """All payloads, which each rank reduces, or all shards, to all ranks."""
        codec, size = self.codec, self.section.high - self.section.low
        result = self.result[self.section.low : self.section.high]
        out = self.message.buffer("everyone", codec.n * size, codec.dtype) if reduce else result
        statistics.allgather(codec.what, self.part.nbytes, codec.n)
        rows = out.reshape(-1, codec.unit)
        expected = len(rows)
        yield self.transport.gather(tag, self.part.reshape(-1, codec.unit), rows)
        if reduce:
            yield from self._reduce(out, result, self.section.low // codec.unit)
        elif len(rows) < expected and not self.failure:  # transports cut it to what came
            raise ReductionError(self.transport.name, codec.reduction)

    def _reduce(self, rows: Any, out: Any, low: int) -> Steps:
        """Combine the units from ``low`` on, as the ranks sent them one after the other."""
        try:
            with statistics.time("reduce"):
                self.message.reduce(rows.reshape(self.codec.n, -1), out, low)
            yield from self.message.accept()
        except Exception as error:
            raise ReductionError(self.transport.name, self.codec.reduction, error) from error


def overlapped(streams: Iterable[Steps], at_once: int = 2) -> Steps:
    """Exchanges of the same kind, some at a time: one's kernels run while the other's bytes travel.

    More than two allreduces Horovod would fuse, and deliver together.
    """
    rest = iter(streams)
    waiting = deque((next(stream), stream) for stream in islice(rest, at_once))
    while waiting:
        handle, stream = waiting.popleft()
        yield handle
        try:
            for following in chain([stream], rest):
                with suppress(StopIteration):
                    waiting.append((next(following), following))
                    break
        except Exception:
            yield from [handle for handle, _stream in waiting]  # ranks fail together: let them end
            raise
