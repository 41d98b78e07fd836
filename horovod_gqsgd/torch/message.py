"""The tensors of one call on the host: prepared, agreed upon, encoded and decoded together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from horovod_gqsgd import agreement, sections
from horovod_gqsgd.config import Config
from horovod_gqsgd.exchange import Steps
from horovod_gqsgd.plan import Plan
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.memory import Memory
from horovod_gqsgd.torch.threads import share_threads
from horovod_gqsgd.transports import horovod_torch
from horovod_gqsgd.transports.horovod_torch import Call, HorovodTorch

#: Types of buffers, as codecs name them.
STORED_AS: dict[Any, torch.dtype] = {
    np.int32: torch.int32,
    np.float64: torch.float64,
    np.uint8: torch.uint8,
}


def flat(tensor: torch.Tensor) -> np.ndarray:
    """A flat NumPy view of a contiguous CPU tensor; bfloat16 as the uint16 of its bits."""
    flat = tensor.detach().view(-1)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


class HostMessage:
    """One tensor, or a group, on its way: see `exchange.Message`.

    It serves one call after the other: `take` begins and `release` ends one. `settle` comes before
    anything that must not happen among ranks that disagree, and where the norms are on a GPU not
    before the ranks' words are under way.
    """

    host = torch.device("cpu")
    most: int | None = None  # elements that travel in one collective, if not up to the codec

    def __init__(self, plan: Plan, transport: HorovodTorch, memory: Memory) -> None:
        self.plan, self.transport, self.memory = plan, transport, memory
        self.codec = plan.codec
        self._buffers: dict[str, torch.Tensor] = {}
        self._sections: dict[str, list[tuple[Section, str]]] = {}
        self.head = self.buffer("head", plan.head_size, np.int32)
        self.sums = self.buffer("sums", plan.sums_size, np.float64)

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
        self.arrays = [flat(source) for source in self.sources]
        # straight into the output if its layout allows
        self.targets = [
            flat(output) if output.is_contiguous() and output.device == self.host else array
            for output, array in zip(outputs, self.arrays, strict=True)
        ]

    def release(self) -> None:
        """Let go of the tensors, and be there for the next call under this name."""
        del self.outputs, self.sources, self.arrays, self.targets
        self.memory.keep(self)

    def buffer(self, role: str, size: int, dtype: type) -> torch.Tensor:
        """A flat tensor that stays from step to step."""
        if role not in self._buffers:
            self._buffers[role] = torch.empty(size, dtype=STORED_AS[dtype], device=self.host)
        return self._buffers[role]

    def write(self) -> None:
        """Fill head and sums with what this rank has."""
        statistics.begin(len(self.sources), sum(s.nbytes for s in self.sources), self.codec.n)
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
        yield self.transport.gather("configurations", mine[None], everyone)
        raise agreement.explain(self.transport.name, everyone.numpy(), self.plan.ranks)

    def sections(self, tag: str, whole: bool) -> list[tuple[Section, str]]:
        """The parts in which a payload travels, with tags for their collectives."""
        if tag not in self._sections:
            most = sections.WHOLE if whole else self.most or self.codec.section
            found = sections.cut(self.plan.sizes, self.codec.length, most)
            several = len(found) > 1
            self._sections[tag] = [
                (section, f"{tag}.{i}" if several else tag) for i, section in enumerate(found)
            ]
        return self._sections[tag]

    def encode(self, payload: torch.Tensor, section: Section) -> None:
        """Quantise the elements of a section into their place in ``payload``."""
        self.plan.encode(self.arrays, self.agreed, payload.numpy(), section, self.own)

    def reduce(self, rows: torch.Tensor, out: torch.Tensor, low: int) -> None:
        """Combine the ranks' rows of the units from ``low`` on."""
        self.codec.reduce(rows.numpy(), out.numpy(), self.plan.sizes, low, self.dithers)

    def accept(self) -> Steps:
        """Raise where what a reduction has returned is no codes; here `reduce` has seen to it."""
        yield from ()

    def decode(self, payload: torch.Tensor, section: Section) -> None:
        """Fill the outputs of a section from what has become of its payload."""
        self.plan.decode(payload.numpy(), self.agreed, self.targets, section)
        for i, _start, stop in section.parts:
            if self.targets[i] is self.arrays[i] and stop == self.plan.sizes[i]:
                self.outputs[i].copy_(self.sources[i].view(self.outputs[i].shape))


def message_of(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> HostMessage:
    """A message with the tensors in it, where they are if kernels can run there, else on the host.

    It is that of the last call under this name, if nothing but the numbers has changed.
    """
    rank, n = horovod_torch.world(call.process_set)
    if place is not None and not (config.codec.cuda and place.runs_kernels()):
        place = None
    what = [(tensor.dtype, tensor.numel()) for tensor in tensors]
    identity = config.codec.identity(config)
    key = (config, identity, call, rank, n, place and place.where, what)
    found = memory.message if memory.key == key else None
    memory.key, memory.message = key, None  # until it is released
    if found is None:
        sizes, dtypes = [size for _, size in what], [str(dtype) for dtype, _ in what]
        scheme = (call.factor(n), horovod_torch.ranks(call.process_set))
        plan = Plan(config.codec(config, rank, n), call.name, sizes, dtypes, *scheme)
        if place is None:
            found = HostMessage(plan, HorovodTorch(call), memory)
        else:
            from horovod_gqsgd.torch.cuda import CudaMessage  # needs numba.cuda

            found = CudaMessage(plan, HorovodTorch(call), memory, place)
    found.take(tensors, outputs, place)
    return found
