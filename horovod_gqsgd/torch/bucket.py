"""The tensors of one call: prepared, agreed upon by all ranks, encoded and decoded together."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from horovod.torch.mpi_ops import Max, Sum

from horovod_gqsgd import agreement
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.exchange import Call, Memory, Steps
from horovod_gqsgd.torch.statistics import statistics
from horovod_gqsgd.torch.threads import share_threads


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in row-major order on the CPU: itself where it is so already."""
    if tensor.is_cuda:
        warnings.warn("GlobalQSGD quantises CUDA tensors on the host for now", stacklevel=2)
    return tensor.detach().cpu().contiguous()


def landing(output: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Where to decode to: straight into the output if its layout allows."""
    return output if output.is_contiguous() and not output.is_cuda else host


def split(array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Consecutive parts of an array."""
    return np.split(array, np.cumsum(lengths)[:-1])


class Bucket:
    """One tensor, or a group, on its way through a scheme.

    `agree` comes first; it gives the tensors their ``norms`` and ``dithers``.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        codec: LinearCodec | ExponentialCodec,
        call: Call,
        memory: Memory,
    ) -> None:
        share_threads()
        self.codec, self.call, self.memory, self.outputs = codec, call, memory, outputs
        self.hosts = [on_host(tensor) for tensor in tensors]
        self.arrays = [native.array(host) for host in self.hosts]
        self.sizes = [array.size for array in self.arrays]
        self.norms: list[np.ndarray] = []
        self.dithers: list[Dither] = []
        raw = sum(host.numel() * host.element_size() for host in self.hosts)
        statistics.begin(len(tensors), raw, codec.n)

    def agree(self, roll: bool = False) -> Steps:
        """Exchange norms; with a ``roll``, insist that no rank has joined."""
        codec, call, config = self.codec, self.call, self.codec.config
        context = {
            "dtype": ", ".join(dict.fromkeys(str(host.dtype) for host in self.hosts)),
            "elements": ", ".join(map(str, self.sizes)),
            "factor": f"{call.factor(codec.n):.9g}",
        }
        counts = [codec.norm_count(size) for size in self.sizes]
        by_max = config.p == "inf"
        start = HEADER + (codec.n if roll else 0)
        head = self.memory.buffer("head", start + by_max * sum(counts), torch.int32)
        sums = self.memory.buffer("sums", 0 if by_max else sum(counts), torch.float64)
        header = head.numpy()
        agreement.write_header(header, config.fingerprint(*context.values()), self.memory.step)
        if roll:
            agreement.write_roll(header[HEADER:start], codec.rank)
        vector = header[start:] if by_max else sums.numpy()
        with statistics.time("norm"):
            for array, part in zip(self.arrays, split(vector, counts), strict=True):
                codec.local_norms(array, part)

        # The first collective goes under the tensor's own name: a rank that does not compress
        # meets Horovod's complaint there, rather than wait for ever.
        statistics.allreduce("norm", head.nbytes + sums.nbytes, codec.n)
        handles = [native.allreduce(head, call.name, Max, call.process_set)]
        if not by_max:
            handles.append(native.allreduce(sums, f"{call.name}.gq.norm", Sum, call.process_set))
        yield from handles
        agreed, step = agreement.read_header(header)
        if not agreed:
            yield from self._disagree(context)
        self.memory.step = step + 1
        if roll:
            agreement.check_roll(header[HEADER:start], call.name)
        self.norms = split(codec.join_norms(vector), counts)
        single = len(self.arrays) == 1
        names = [call.name if single else f"{call.name}.{i}" for i in range(len(self.arrays))]
        self.dithers = [Dither(config.seed, step, name) for name in names]

    def _disagree(self, context: dict[str, str]) -> Steps:
        """Tell one another what one has, and raise what differs."""
        description = agreement.describe(self.codec.config, context)
        mine, everyone = torch.from_numpy(description.copy()), torch.empty(0).byte()
        name = f"{self.call.name}.gq.configurations"
        yield native.allgather(mine[None], everyone, name, self.call.process_set)
        raise agreement.explain(self.call.name, everyone.numpy())

    def encode(self, parts: Sequence[np.ndarray]) -> None:
        """Quantise every tensor into its part."""
        with statistics.time("encode"):
            for encoded in zip(self.arrays, self.norms, parts, self.dithers, strict=True):
                self.codec.encode(*encoded)

    def decode(self, parts: Sequence[np.ndarray]) -> None:
        """Fill the outputs from what has become of the parts."""
        factor = self.call.factor(self.codec.n)
        with statistics.time("decode"):
            for output, host, part, norm in zip(
                self.outputs, self.hosts, parts, self.norms, strict=True
            ):
                target = landing(output, host)
                self.codec.decode(part, norm, native.array(target), factor)
                if target is not output:
                    output.copy_(target.view(output.shape))
