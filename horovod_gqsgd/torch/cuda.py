"""The tensors of one call on a GPU: as `message`, without ever waiting for the device.

The ranks' norms and their step stay on the device, where the kernels read them. The header goes to
the host beside them, in a copy that nobody waits for; `settle` looks at it.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from horovod_gqsgd import sections, shards
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.cuda_kernels.launch import Launcher, tree_of
from horovod_gqsgd.exchange import Steps
from horovod_gqsgd.plan import Plan
from horovod_gqsgd.reductions import BUILTIN
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.memory import Memory
from horovod_gqsgd.torch.message import HostMessage
from horovod_gqsgd.transports.horovod_torch import HorovodTorch


@functools.cache
def _warn(reduction: str) -> None:
    warnings.warn(
        f"GlobalQSGD runs the reduction {reduction!r} on the host: it was registered without cuda=",
        stacklevel=2,
    )


@functools.cache
def _nodes(n: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(tree_of(n)).to(device)


class CudaMessage(HostMessage):
    """A message whose tensors are on one GPU."""

    most = sections.WHOLE  # kernels are fast there

    def __init__(self, plan: Plan, transport: HorovodTorch, memory: Memory, place: Cuda) -> None:
        self.host = place.device
        super().__init__(plan, transport, memory)
        self.notice = place.pinned(plan.start)
        self.largest: list[torch.Tensor] = []  # codes that a user's reduction has returned

    def take(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        place: Cuda | None,
    ) -> None:
        """Have the tensors in row-major order."""
        assert place is not None
        self.device, self.outputs = place, outputs
        self.launcher = Launcher(
            self.codec.config, self.codec.rank, self.codec.n, place.run, place.empty
        )
        self.sources = [tensor.detach().contiguous() for tensor in tensors]

    def release(self) -> None:
        """Let go of the tensors, and be there for the next call under this name."""
        del self.outputs, self.sources, self.prepared
        self.memory.keep(self)

    def norms(self) -> list[Any]:
        """The norms of every tensor, in the vector that carries them."""
        vector = self.head if self.plan.by_max else self.sums
        return [self.device.array(vector[span]) for span in self.plan.norm_spans]

    def write(self) -> None:
        """Fill head and sums with what this rank has."""
        plan, roll = self.plan, HEADER + self.codec.rank
        statistics.begin(len(self.sources), sum(s.nbytes for s in self.sources), self.codec.n)
        head = self.device.array(self.head)
        with statistics.time("norm"):
            self.launcher.write_header(
                head, plan.fingerprint, self.memory.step, roll if plan.start > HEADER else -1
            )
            for source, part in zip(self.sources, self.norms(), strict=True):
                self.launcher.local_norms(self.device.array(source), part)

    def inspect(self) -> Steps:
        """Raise where ranks disagree, before they know the norms."""
        self._send_header()
        yield from self.settle()

    def _send_header(self) -> None:
        """Let the header set out for the host."""
        self.notice.copy_(self.head[: self.plan.start], non_blocking=True)
        self.copied = self.device.event()

    def read(self) -> Steps:
        """Norms and keys from the exchanged vector; its header sets out for the host."""
        head, plan = self.device.array(self.head), self.plan
        self.prepared = [
            self.launcher.prepare(part, head, name, size)
            for part, name, size in zip(self.norms(), plan.names, plan.sizes, strict=True)
        ]
        self._send_header()
        yield from ()

    def settle(self) -> Steps:
        """Raise where ranks disagree or have joined, as soon as the header is on the host."""
        yield self.copied
        header = self.notice.numpy()
        yield from self.check(header)
        self.dithers = self.plan.dithers(header)

    def encode(self, payload: torch.Tensor, _section: Section) -> None:
        """Quantise every tensor into its place in ``payload``; there is one section."""
        with statistics.time("encode"):
            for source, (norms, keys), span in zip(
                self.sources, self.prepared, self.plan.spans, strict=True
            ):
                part = self.device.array(payload[span])
                self.launcher.encode(self.device.array(source), norms, keys, part)

    def reduce(self, rows: torch.Tensor, reduced: torch.Tensor, low: int) -> None:
        """Combine the ranks' rows of the groups from ``low`` on."""
        reduction, bits = self.codec.config.reducer, self.codec.config.bits
        builtin = reduction.name in BUILTIN
        if not builtin and reduction.cuda is None:
            _warn(reduction.name)
            on_host = torch.empty(reduced.shape, dtype=torch.uint8)
            super().reduce(rows.cpu(), on_host, low)
            reduced.copy_(on_host)
            return
        for piece in shards.pieces(self.plan.sizes, low, low + reduced.numel() // bits):
            part = reduced[piece.low * bits : piece.high * bits]
            if builtin:
                self._reduce_builtin(rows, part, piece)
            else:
                self._reduce_registered(rows, part, piece)

    def _reduce_builtin(self, rows: torch.Tensor, part: torch.Tensor, piece: shards.Piece) -> None:
        bits, array = self.codec.config.bits, self.device.array
        nodes = _nodes(self.codec.n, self.host)
        self.launcher.reduce(
            array(rows.view(-1)[piece.low * bits :]), rows.shape[1], array(part),
            self.prepared[piece.tensor][1], piece.elements, piece.start, array(nodes),
        )  # fmt: skip

    def _reduce_registered(
        self, rows: torch.Tensor, part: torch.Tensor, piece: shards.Piece
    ) -> None:
        """A user's reduction of tensors: codes uint8[n, m], dither int32[m] (bits of uint32)."""
        config, device, count = self.codec.config, self.device, piece.elements
        bits = config.bits
        codes = torch.empty((len(rows), count), dtype=torch.uint8, device=self.host)
        for row, unpacked in zip(rows, codes, strict=True):
            packed = row[piece.low * bits : piece.high * bits]
            self.launcher.unpack(device.array(packed), device.array(unpacked))
        words = device.empty(count, np.uint32)
        self.launcher.dither(words, self.prepared[piece.tensor][1], piece.start)
        assert config.reducer.cuda is not None
        result = config.reducer.cuda(codes, config.code, device.tensor(words))
        if result.shape != (count,) or result.dtype != torch.uint8:
            raise ValueError(
                f"reduction {config.reducer.name!r} returned {result.dtype}{list(result.shape)} "
                f"for codes of shape {list(codes.shape)}: return uint8[{count}], one code an "
                "element"
            )
        if bits < 8:
            self.largest.append(result.max())
        self.launcher.pack(device.array(result.contiguous()), device.array(part))

    def accept(self) -> Steps:
        """Raise where a code that a user's reduction has returned would spill into its neighbours.

        The largest sets out for the host like the header. This exchange waits for it, since such
        a shard must not leave; the stream and other exchanges do not.
        """
        largest, self.largest = self.largest, []
        if largest:
            notice = self.device.pinned(1)
            notice.copy_(torch.stack(largest).max().int().view(1), non_blocking=True)
            yield self.device.event()
            self.codec.config.reducer.check_codes(int(notice), self.codec.config.bits)

    def decode(self, payload: torch.Tensor, _section: Section) -> None:
        """Fill the outputs from what has become of the payload."""
        with statistics.time("decode"):
            for output, span, (norms, _keys) in zip(
                self.outputs, self.plan.spans, self.prepared, strict=True
            ):
                target = output
                if not output.is_contiguous() or output.device != self.host:
                    target = torch.empty(output.shape, dtype=output.dtype, device=self.host)
                part = self.device.array(payload[span])
                self.launcher.decode(part, norms, self.device.array(target), self.plan.factor)
                if target is not output:
                    output.copy_(target)
