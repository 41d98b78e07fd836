"""The tensors of one call on the host: prepared, agreed upon, encoded and decoded together."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from horovod.torch.mpi_ops import Max, Sum

from horovod_gqsgd import agreement, sections
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Memory, Steps
from horovod_gqsgd.torch.threads import share_threads


def arrays(parts: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """NumPy views of contiguous CPU tensors."""
    return [native.array(part) for part in parts]


class Bucket:
    """One tensor, or a group, on its way through a scheme.

    `agree` comes first; `settle` comes before anything that must not happen among ranks that
    disagree, and where the norms are on a GPU not before the ranks' words are under way.
    """

    host = torch.device("cpu")
    most = sections.ELEMENTS  # that travel in one collective

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        codec: LinearCodec | ExponentialCodec,
        call: Call,
        memory: Memory,
    ) -> None:
        self.codec, self.call, self.memory, self.outputs = codec, call, memory, outputs
        self.sizes = [tensor.numel() for tensor in tensors]
        self.lengths = [codec.length(size) for size in self.sizes]
        self.starts = [0, *accumulate(self.lengths)]
        self.norms: list[Any] = []
        self.dithers: list[Dither] = []
        single = len(tensors) == 1
        self.names = [call.name if single else f"{call.name}.{i}" for i in range(len(tensors))]
        self.context = {
            "dtype": ", ".join(dict.fromkeys(str(tensor.dtype) for tensor in tensors)),
            "elements": ", ".join(map(str, self.sizes)),
            "factor": f"{call.factor(codec.n):.9g}",
        }
        raw = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        statistics.begin(len(tensors), raw, codec.n)
        self.take(tensors)

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have the tensors in row-major order where the kernels are."""
        share_threads()
        self.sources = [tensor.detach().cpu().contiguous() for tensor in tensors]

    def buffer(self, role: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor that stays from step to step."""
        return self.memory.buffer(role, size, dtype, self.host)

    def agree(self, roll: bool = False) -> Steps:
        """Exchange norms; with a ``roll``, insist that no rank has joined."""
        codec, call, config = self.codec, self.call, self.codec.config
        self.counts = [codec.norm_count(size) for size in self.sizes]
        by_max = config.p == "inf"
        self.start = HEADER + (codec.n if roll else 0)
        self.head = self.buffer("head", self.start + by_max * sum(self.counts), torch.int32)
        sums = self.buffer("sums", 0 if by_max else sum(self.counts), torch.float64)
        vector = self.head[self.start :] if by_max else sums
        with statistics.time("norm"):
            self.begin(config.fingerprint(*self.context.values()), vector.split(self.counts))

        statistics.allreduce("norm", self.head.nbytes + sums.nbytes, codec.n)
        handles = [self.announce()]
        if not by_max:
            handles.append(native.allreduce(sums, f"{call.name}.gq.norm", Sum, call.process_set))
        yield from handles
        yield from self.join(vector.split(self.counts))

    def announce(self) -> int:
        """Start the first collective as a rank that does not compress would.

        Under the name of the tensor or, member for member, of the group: Horovod tells such ranks
        that they differ, where they would wait for one another otherwise.
        """
        call, head = self.call, self.head
        if call.members is None:
            return native.allreduce(head, call.name, Max, call.process_set)
        others = self.buffer("others", call.members - 1, torch.int32)[:, None].unbind()
        return native.allreduce([head, *others], call.name, Max, call.process_set)

    def begin(self, fingerprint: int, parts: Sequence[torch.Tensor]) -> None:
        """Write the header, and this rank's norms into ``parts``."""
        header = self.head.numpy()
        agreement.write_header(header, fingerprint, self.memory.step)
        if self.start > HEADER:
            agreement.write_roll(header[HEADER : self.start], self.codec.rank)
        for source, part in zip(self.sources, arrays(parts), strict=True):
            self.codec.local_norms(native.array(source), part)

    def join(self, parts: Sequence[torch.Tensor]) -> Steps:
        """Make of the ranks' norms, together in ``parts``, what the kernels take."""
        yield from self.check(self.head[: self.start].numpy())
        self.norms = [self.codec.join_norms(part) for part in arrays(parts)]

    def settle(self) -> Steps:
        """Raise where ranks disagree or have joined; here `join` has seen to it."""
        yield from ()

    def check(self, header: np.ndarray) -> Steps:
        """Raise where ranks disagree or have joined; else adopt their step."""
        agreed, step = agreement.read_header(header)
        if not agreed:
            yield from self._disagree()
        self.memory.step = step + 1
        if header.size > HEADER:
            agreement.check_roll(header[HEADER:], self.call.name)
        self.dithers = [Dither(self.codec.config.seed, step, name) for name in self.names]

    def _disagree(self) -> Steps:
        """Tell one another what one has, and raise what differs."""
        description = agreement.describe(self.codec.config, self.context)
        mine, everyone = torch.from_numpy(description.copy()), torch.empty(0).byte()
        name = f"{self.call.name}.gq.configurations"
        yield native.allgather(mine[None], everyone, name, self.call.process_set)
        raise agreement.explain(self.call.name, everyone.numpy())

    def sections(self, what: str, whole: bool = False) -> Iterator[tuple[Section, str]]:
        """The parts in which words or codes travel, with names for their collectives."""
        most = sections.WHOLE if whole else self.most
        found = sections.cut(self.sizes, self.codec.length, most)
        for i, section in enumerate(found):
            yield section, f"{self.call.name}.gq.{what}{f'.{i}' if len(found) > 1 else ''}"

    def encode(self, buffer: torch.Tensor, section: Section) -> None:
        """Quantise the elements of a section into their place in ``buffer``."""
        with statistics.time("encode"):
            for i, *elements in section.parts:
                scheme = (self.norms[i], self._part(buffer, i), self.dithers[i])
                self.codec.encode(native.array(self.sources[i]), *scheme, *elements)

    def _part(self, buffer: torch.Tensor, i: int) -> np.ndarray:
        """The words or codes of a tensor."""
        return native.array(buffer[self.starts[i] : self.starts[i + 1]])

    def reduce(self, rows: torch.Tensor, reduced: torch.Tensor, low: int) -> None:
        """Combine the ranks' codes of the groups from ``low`` on, a row each."""
        assert isinstance(self.codec, ExponentialCodec)
        self.codec.reduce(rows.numpy(), reduced.numpy(), self.sizes, low, self.dithers)

    def decode(self, buffer: torch.Tensor, section: Section) -> None:
        """Fill the outputs of a section from what has become of its place in ``buffer``."""
        factor = self.call.factor(self.codec.n)
        with statistics.time("decode"):
            for i, start, stop in section.parts:
                # straight into the output if its layout allows
                output = self.outputs[i]
                straight = output.is_contiguous() and output.device == self.host
                target = output if straight else self.sources[i]
                scheme = (self.norms[i], native.array(target), factor)
                self.codec.decode(self._part(buffer, i), *scheme, start, stop)
                if target is not output and stop == self.sizes[i]:
                    output.copy_(target.view(output.shape))


def make_bucket(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    codec: LinearCodec | ExponentialCodec,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Bucket:
    """A bucket where the tensors are, if kernels can run there; else one on the host."""
    if place is None or not place.runs_kernels():
        return Bucket(tensors, outputs, codec, call, memory)
    from horovod_gqsgd.torch.cuda import CudaBucket  # needs numba.cuda

    return CudaBucket(tensors, outputs, codec, call, memory, place)
