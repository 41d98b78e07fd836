"""The way of a gradient, written as it happens: each ``yield`` waits for one of Horovod's handles.

Nobody blocks on the way. `Operation` goes on with an exchange whenever the handle it waits for
has completed; who calls it, and when, is `seam`'s affair.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from horovod.torch.mpi_ops import Average, Max, Sum

from horovod_gqsgd.agreement import HEADER, describe, explain, read_header, translate, write_header
from horovod_gqsgd.codec import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.statistics import statistics
from horovod_gqsgd.torch.threads import share_threads

Steps = Iterator[int]


class Call(NamedTuple):
    """What Horovod's Python layer asked for, besides the tensors."""

    name: str
    op: int
    divisor: int
    prescale: float
    postscale: float
    process_set: int

    def factor(self, n: int) -> float:
        """What the mean is multiplied by at decode."""
        scale = self.prescale * self.postscale / self.divisor
        return scale if self.op == Average else scale * n


@dataclass
class Memory:
    """What stays from step to step for one name: the call counter and the buffers."""

    step: int = 0
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def buffer(self, role: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor, the same one as at the last step if its size has not changed."""
        found = self.buffers.get(role)
        if found is None or found.numel() != size or found.dtype != dtype:
            found = self.buffers[role] = torch.empty(size, dtype=dtype)
        return found


class Operation:
    """An exchange under way."""

    def __init__(self, name: str, steps: Steps) -> None:
        self.name = name
        self.done = False
        self.error: Exception | None = None
        self._steps = steps
        self._waiting = next(steps)  # what goes wrong at the start is the caller's to know

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether it is done, or has failed."""
        while not self.done and native.poll(self._waiting):
            try:
                native.finish(self._waiting)
                self._waiting = next(self._steps)
            except StopIteration:
                self.done = True
            except Exception as error:  # told to whoever waits for this operation
                self.error, self.done = translate(self.name, error), True
        return self.done


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in row-major order on the CPU: itself where it is so already."""
    if tensor.is_cuda:
        warnings.warn("GlobalQSGD quantises CUDA tensors on the host for now", stacklevel=2)
    return tensor.detach().cpu().contiguous()


def landing(output: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Where to decode to: straight into the output if its layout allows."""
    return output if output.is_contiguous() and not output.is_cuda else host


def linear(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
) -> Steps:
    """Norms by one allreduce, words by another, for one tensor or for a whole group."""
    rank, n = native.world(call.process_set)
    codec = LinearCodec(config, rank, n)
    share_threads()
    hosts = [on_host(tensor) for tensor in tensors]
    arrays = [native.array(host) for host in hosts]
    sizes = [array.size for array in arrays]

    context = {
        "dtype": ", ".join(dict.fromkeys(str(tensor.dtype) for tensor in tensors)),
        "elements": ", ".join(map(str, sizes)),
        "factor": f"{call.factor(n):.9g}",
    }
    counts = [codec.norm_count(size) for size in sizes]
    exchanged_max = config.p == "inf"
    head = memory.buffer("head", HEADER + exchanged_max * sum(counts), torch.int32)
    write_header(head.numpy(), config.fingerprint(*context.values()), memory.step)
    sums = memory.buffer("sums", 0 if exchanged_max else sum(counts), torch.float64)
    vector = head.numpy()[HEADER:] if exchanged_max else sums.numpy()
    with statistics.time("norm"):
        for array, part in zip(arrays, _split(vector, counts), strict=True):
            codec.local_norms(array, part)
    statistics.tensors += len(tensors)
    statistics.raw_bytes += sum(host.numel() * host.element_size() for host in hosts)
    statistics.norm_bytes += head.nbytes + sums.nbytes

    # The first collective goes under the tensor's own name: a rank that does not compress meets
    # Horovod's complaint there, rather than wait for ever.
    handles = [native.allreduce(head, call.name, Max, call.process_set)]
    if not exchanged_max:
        handles.append(native.allreduce(sums, f"{call.name}.gq.norm", Sum, call.process_set))
    yield from handles
    agreed, step = read_header(head.numpy())
    if not agreed:
        yield from disagree(config, context, call)
    memory.step = step + 1

    norms = codec.join_norms(vector)
    lengths = [codec.word_count(size) for size in sizes]
    words = memory.buffer("words", sum(lengths), torch.int32)
    dither = [
        Dither(config.seed, step, call.name if len(tensors) == 1 else f"{call.name}.{i}")
        for i in range(len(tensors))
    ]
    with statistics.time("encode"):
        for array, norm, part, drawn in zip(
            arrays, _split(norms, counts), _split(words.numpy(), lengths), dither, strict=True
        ):
            codec.encode(array, norm, part, drawn)
    statistics.word_bytes += words.nbytes
    statistics.sends += 1
    yield native.allreduce(words, f"{call.name}.gq.words", Sum, call.process_set)

    landings = [landing(output, host) for output, host in zip(outputs, hosts, strict=True)]
    with statistics.time("decode"):
        for received, norm, target in zip(
            _split(words.numpy(), lengths), _split(norms, counts), landings, strict=True
        ):
            codec.decode(received, norm, native.array(target), call.factor(n))
    for output, target in zip(outputs, landings, strict=True):
        if target is not output:
            output.copy_(target.view(output.shape))


def _split(array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Consecutive parts of an array."""
    return np.split(array, np.cumsum(lengths)[:-1])


def disagree(config: Config, context: dict[str, str], call: Call) -> Steps:
    """Tell one another what one has, and raise what differs."""
    mine, everyone = torch.from_numpy(describe(config, context).copy()), torch.empty(0).byte()
    name = f"{call.name}.gq.configurations"
    yield native.allgather(mine[None], everyone, name, call.process_set)
    raise explain(call.name, everyone.numpy())


def uncompressed(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], names: list[str], call: Call
) -> Steps:
    """As without us, also for bfloat16 and for layouts that Horovod refuses."""
    work = [_summable(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)]
    scale = (call.prescale, call.postscale, call.divisor)
    yield from [
        native.allreduce(tensor, name, call.op, call.process_set, *scale)
        for tensor, name in zip(work, names, strict=True)
    ]
    for output, tensor in zip(outputs, work, strict=True):
        if tensor.data_ptr() != output.data_ptr():
            output.copy_(tensor)


def _summable(tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """What Horovod can reduce in place of ``tensor``: itself if that is where the output goes."""
    known = tensor.dtype in native.SUMMABLE
    if known and tensor.is_contiguous() and tensor.data_ptr() == output.data_ptr():
        return tensor
    return tensor.to(tensor.dtype if known else torch.float32, copy=True).contiguous()
