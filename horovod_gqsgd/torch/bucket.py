"""The tensors of one call on the host: prepared, agreed upon, encoded and decoded together."""

from collections.abc import Sequence

import numpy as np
import torch
from horovod.torch.mpi_ops import Max, Sum

from horovod_gqsgd import agreement, bucket, sections
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Steps
from horovod_gqsgd.torch.memory import Memory
from horovod_gqsgd.torch.threads import share_threads


class Bucket:
    """One tensor, or a group, on its way through a scheme; it serves one call after the other.

    `take` begins and `release` ends a call. `agree` comes first; `settle` comes before anything
    that must not happen among ranks that disagree, and where the norms are on a GPU not before the
    ranks' words are under way.
    """

    host = torch.device("cpu")
    most: int | None = None  # elements that travel in one collective, if not up to the codec

    def __init__(self, plan: bucket.Bucket, call: Call, memory: Memory) -> None:
        self.plan, self.call, self.memory = plan, call, memory
        self.codec = plan.codec
        self._buffers: dict[str, torch.Tensor] = {}
        self._sections: dict[str, list[tuple[Section, str]]] = {}
        self.head = self.buffer("head", plan.head_size, torch.int32)
        self.sums = self.buffer("sums", plan.sums_size, torch.float64)

    def take(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        place: Cuda | None,  # noqa: ARG002
    ) -> None:
        """Have the tensors in row-major order where the kernels are."""
        share_threads()
        self.outputs = outputs
        self.sources = [tensor.detach().cpu().contiguous() for tensor in tensors]
        self.arrays = [native.array(source) for source in self.sources]
        # straight into the output if its layout allows
        self.targets = [
            native.array(output) if output.is_contiguous() and output.device == self.host else array
            for output, array in zip(outputs, self.arrays, strict=True)
        ]

    def release(self) -> None:
        """Let go of the tensors, and be there for the next call under this name."""
        del self.outputs, self.sources, self.arrays, self.targets
        self.memory.keep(self)

    def buffer(self, role: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor that stays from step to step."""
        if role not in self._buffers:
            self._buffers[role] = torch.empty(size, dtype=dtype, device=self.host)
        return self._buffers[role]

    def agree(self) -> Steps:
        """Exchange norms."""
        call, n = self.call, self.codec.n
        raw = sum(source.nbytes for source in self.sources)
        statistics.begin(len(self.sources), raw, n)
        self.write()
        statistics.allreduce("norm", self.head.nbytes + self.sums.nbytes, n)
        yield self.announce()
        if not self.plan.by_max:
            # Not before: a rank that differs would not take part, and they would stay in Horovod.
            yield from self.inspect()
            yield native.allreduce(self.sums, f"{call.name}.gq.norm", Sum, call.process_set)
        yield from self.read()

    def announce(self) -> int:
        """Start the first collective as a rank that does not compress would.

        Under the name of the tensor or, member for member, of the group: Horovod tells such ranks
        that they differ, where they would wait for one another otherwise.

        Of a group Horovod tells what became of the member that it completed last. So all differ if
        one does: each has the length of the head in its shape, and no elements.
        """
        call, head = self.call, self.head
        if call.members is None:
            return native.allreduce(head, call.name, Max, call.process_set)
        other = head.new_empty(len(head), 0)
        members = [head, *[other.clone() for _ in range(call.members - 1)]]
        return native.allreduce(members, call.name, Max, call.process_set)

    def write(self) -> None:
        """Fill head and sums with what this rank has."""
        self.plan.write(self.arrays, self.head.numpy(), self.sums.numpy(), self.memory.step)
        self.own = self.head.numpy().copy()

    def inspect(self) -> Steps:
        """Raise where ranks disagree, before they know the norms."""
        yield from self.check(self.head.numpy())

    def read(self) -> Steps:
        """Make of what the ranks have together what the kernels take."""
        head = self.head.numpy()
        yield from self.check(head)
        self.agreed = self.plan.read(head, self.sums.numpy())
        self.dithers = self.agreed.dithers

    def settle(self) -> Steps:
        """Raise where ranks disagree or have joined; here `read` has seen to it."""
        yield from ()

    def check(self, header: np.ndarray) -> Steps:
        """Raise where ranks disagree; else adopt their step."""
        agreed, step = agreement.read_header(header)
        if not agreed:
            yield from self._disagree()
        self.memory.step = step + 1

    def _disagree(self) -> Steps:
        """Tell one another what one has, and raise what differs."""
        mine, everyone = torch.from_numpy(self.plan.description().copy()), torch.empty(0).byte()
        name = f"{self.call.name}.gq.configurations"
        yield native.allgather(mine[None], everyone, name, self.call.process_set)
        raise agreement.explain(self.call.name, everyone.numpy(), self.plan.ranks)

    def sections(self, what: str, whole: bool = False) -> list[tuple[Section, str]]:
        """The parts in which words or codes travel, with names for their collectives."""
        if what not in self._sections:
            most = sections.WHOLE if whole else self.most or self.codec.section
            found = sections.cut(self.plan.sizes, self.codec.length, most)
            several = len(found) > 1
            self._sections[what] = [
                (section, f"{self.call.name}.gq.{what}{f'.{i}' if several else ''}")
                for i, section in enumerate(found)
            ]
        return self._sections[what]

    def encode(self, out: torch.Tensor, section: Section) -> None:
        """Quantise the elements of a section into their place in ``out``."""
        self.plan.encode(self.arrays, self.agreed, out.numpy(), section, self.own)

    def reduce(self, rows: torch.Tensor, reduced: torch.Tensor, low: int) -> None:
        """Combine the ranks' codes of the groups from ``low`` on, a row each."""
        assert isinstance(self.codec, ExponentialCodec)
        self.codec.reduce(rows.numpy(), reduced.numpy(), self.plan.sizes, low, self.dithers)

    def accept(self) -> Steps:
        """Raise where what a reduction has returned is no codes; here `reduce` has seen to it."""
        yield from ()

    def decode(self, reduced: torch.Tensor, section: Section) -> None:
        """Fill the outputs of a section from what has become of its words or codes."""
        self.plan.decode(reduced.numpy(), self.agreed, self.targets, section)
        for i, _start, stop in section.parts:
            if self.targets[i] is self.arrays[i] and stop == self.plan.sizes[i]:
                self.outputs[i].copy_(self.sources[i].view(self.outputs[i].shape))


def make_bucket(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Bucket:
    """A bucket with the tensors in it, where they are if kernels can run there, else on the host.

    It is that of the last call under this name, if nothing but the numbers has changed.
    """
    rank, n = native.world(call.process_set)
    if place is not None and not place.runs_kernels():
        place = None
    reducer = config.reducer if config.reduction else None
    what = [(tensor.dtype, tensor.numel()) for tensor in tensors]
    key = (config, reducer, call, rank, n, place and place.where, what)
    found = memory.bucket if memory.key == key else None
    memory.key, memory.bucket = key, None  # until it is released
    if found is None:
        codec = (LinearCodec if reducer is None else ExponentialCodec)(config, rank, n)
        sizes, dtypes = [size for _, size in what], [str(dtype) for dtype, _ in what]
        scheme = (call.factor(n), native.ranks(call.process_set))
        plan = bucket.Bucket(codec, call.name, sizes, dtypes, *scheme)
        if place is None:
            found = Bucket(plan, call, memory)
        else:
            from horovod_gqsgd.torch.cuda import CudaBucket  # needs numba.cuda

            found = CudaBucket(plan, call, memory, place)
    found.take(tensors, outputs, place)
    return found
