"""Linear levels: words summed by Horovod's own allreduce."""

from collections.abc import Sequence

import torch
from horovod.torch.mpi_ops import Sum

from horovod_gqsgd.codec import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.bucket import make_bucket
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Memory, Steps


def linear(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Steps:
    """Norms by one allreduce, words by another, for one tensor or for a whole group."""
    codec = LinearCodec(config, *native.world(call.process_set))
    bucket = make_bucket(tensors, outputs, codec, call, memory, place)
    yield from bucket.agree()

    lengths = [codec.word_count(size) for size in bucket.sizes]
    words = bucket.buffer("words", sum(lengths), torch.int32)
    parts = words.split(lengths)
    bucket.encode(parts)
    statistics.sends += 1
    statistics.allreduce("word", words.nbytes, codec.n)
    summed = native.allreduce(words, f"{call.name}.gq.words", Sum, call.process_set)
    yield from bucket.settle()
    yield summed

    bucket.decode(parts)
