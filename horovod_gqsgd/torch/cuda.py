"""The tensors of one call on a GPU: as `bucket`, without ever waiting for the device.

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
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.cuda_kernels.launch import Launcher, tree_of
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch.bucket import Bucket
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Memory, Steps


@functools.cache
def _warn(reduction: str) -> None:
    warnings.warn(
        f"GlobalQSGD runs the reduction {reduction!r} on the host: it was registered without cuda=",
        stacklevel=2,
    )


@functools.cache
def _nodes(n: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(tree_of(n)).to(device)


class CudaBucket(Bucket):
    """A bucket whose tensors are on one GPU."""

    most = sections.WHOLE  # kernels are fast there

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        codec: LinearCodec | ExponentialCodec,
        call: Call,
        memory: Memory,
        device: Cuda,
    ) -> None:
        self.device, self.host = device, device.device
        self.launcher = Launcher(codec.config, codec.rank, codec.n, device.run, device.empty)
        self.keys: list[Any] = []
        super().__init__(tensors, outputs, codec, call, memory)

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have the tensors in row-major order."""
        self.sources = [tensor.detach().contiguous() for tensor in tensors]

    def begin(self, fingerprint: int, parts: Sequence[torch.Tensor]) -> None:
        """Write the header, and this rank's norms into ``parts``."""
        roll = HEADER + self.codec.rank if self.start > HEADER else -1
        head = self.device.array(self.head)
        self.launcher.write_header(head, fingerprint, self.memory.step, roll)
        for source, part in zip(self.sources, parts, strict=True):
            self.launcher.local_norms(self.device.array(source), self.device.array(part))

    def join(self, parts: Sequence[torch.Tensor]) -> Steps:
        """Norms and keys from the exchanged vector; its header sets out for the host."""
        head = self.device.array(self.head)
        for part, name, size in zip(parts, self.names, self.sizes, strict=True):
            norms, keys = self.launcher.prepare(self.device.array(part), head, name, size)
            self.norms.append(norms)
            self.keys.append(keys)
        if "notice" not in self.memory.buffers or len(self.memory.buffers["notice"]) != self.start:
            self.memory.buffers["notice"] = self.device.pinned(self.start)
        self.memory.buffers["notice"].copy_(self.head[: self.start], non_blocking=True)
        self.copied = self.device.event()
        yield from ()

    def settle(self) -> Steps:
        """Raise where ranks disagree or have joined, as soon as the header is on the host."""
        yield self.copied
        yield from self.check(self.memory.buffers["notice"].numpy())

    def encode(self, buffer: torch.Tensor, _section: Section) -> None:
        """Quantise every tensor into its place in ``buffer``; there is one section."""
        linear = isinstance(self.codec, LinearCodec)
        run = self.launcher.encode_linear if linear else self.launcher.encode_exponential
        with statistics.time("encode"):
            for source, norms, keys, part in zip(
                self.sources, self.norms, self.keys, buffer.split(self.lengths), strict=True
            ):
                run(self.device.array(source), norms, keys, self.device.array(part))

    def reduce(self, rows: torch.Tensor, reduced: torch.Tensor, low: int) -> None:
        """Combine the ranks' codes of the groups from ``low`` on, a row each."""
        reduction, bits = self.codec.config.reducer, self.codec.config.bits
        builtin = reduction.name in ("exact", "pairwise")
        if not builtin and reduction.cuda is None:
            _warn(reduction.name)
            on_host = torch.empty(reduced.shape, dtype=torch.uint8)
            super().reduce(rows.cpu(), on_host, low)
            reduced.copy_(on_host)
            return
        for piece in shards.pieces(self.sizes, low, low + reduced.numel() // bits):
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
            self.keys[piece.tensor], piece.elements, piece.start, array(nodes),
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
        self.launcher.dither(words, self.keys[piece.tensor], piece.start)
        assert config.reducer.cuda is not None
        result = config.reducer.cuda(codes, config.code, device.tensor(words))
        if result.shape != (count,) or result.dtype != torch.uint8:
            raise ValueError(
                f"reduction {config.reducer.name!r} returned {result.dtype}{list(result.shape)} "
                f"for codes of shape {list(codes.shape)}: return uint8[{count}], one code an "
                "element"
            )
        self.launcher.pack(device.array(result.contiguous()), device.array(part))

    def decode(self, buffer: torch.Tensor, _section: Section) -> None:
        """Fill the outputs from what has become of ``buffer``."""
        linear = isinstance(self.codec, LinearCodec)
        run = self.launcher.decode_linear if linear else self.launcher.decode_exponential
        factor = self.call.factor(self.codec.n)
        parts = buffer.split(self.lengths)
        with statistics.time("decode"):
            for output, part, norms in zip(self.outputs, parts, self.norms, strict=True):
                straight = output.is_contiguous() and output.device == self.host
                target = output
                if not straight:
                    target = torch.empty(output.shape, dtype=output.dtype, device=self.host)
                run(self.device.array(part), norms, self.device.array(target), factor)
                if target is not output:
                    output.copy_(target)
