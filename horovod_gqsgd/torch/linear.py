"""Linear levels: words summed by Horovod's own allreduce."""

from collections.abc import Sequence

import torch
from horovod.torch.mpi_ops import Sum

from horovod_gqsgd.config import Config
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.bucket import Bucket, make_bucket
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Steps, overlapped
from horovod_gqsgd.torch.memory import Memory


def linear(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Steps:
    """Norms by one allreduce, words by another, or by several if they are many."""
    bucket = make_bucket(tensors, outputs, config, call, memory, place)
    yield from bucket.agree()
    words = bucket.buffer("words", bucket.plan.length, torch.int32)
    yield from overlapped(
        _section(bucket, words, section, name) for section, name in bucket.sections("words")
    )
    bucket.release()


def _section(bucket: Bucket, words: torch.Tensor, section: Section, name: str) -> Steps:
    """Encode, sum and decode a part of the words."""
    bucket.encode(words, section)
    part = words[section.low : section.high]
    statistics.sends += 1
    statistics.allreduce("word", part.nbytes, bucket.codec.n)
    summed = native.allreduce(part, name, Sum, bucket.call.process_set)
    yield from bucket.settle()
    yield summed
    bucket.decode(words, section)
