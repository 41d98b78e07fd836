"""Linear levels: words summed by Horovod's own allreduce."""

from collections.abc import Sequence

import torch
from horovod.torch.mpi_ops import Sum

from horovod_gqsgd.codec import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.bucket import Bucket, split
from horovod_gqsgd.torch.exchange import Call, Memory, Steps
from horovod_gqsgd.torch.statistics import statistics


def linear(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
) -> Steps:
    """Norms by one allreduce, words by another, for one tensor or for a whole group."""
    codec = LinearCodec(config, *native.world(call.process_set))
    bucket = Bucket(tensors, outputs, codec, call, memory)
    yield from bucket.agree()

    lengths = [codec.word_count(size) for size in bucket.sizes]
    words = memory.buffer("words", sum(lengths), torch.int32)
    parts = split(words.numpy(), lengths)
    bucket.encode(parts)
    statistics.sends += 1
    statistics.allreduce("word", words.nbytes, codec.n)
    yield native.allreduce(words, f"{call.name}.gq.words", Sum, call.process_set)

    bucket.decode(parts)
