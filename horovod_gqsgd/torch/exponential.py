"""Exponential levels: codes reduced by a registered function, on alltoall and allgather.

Every rank owns 1/n of the codes: ``alltoall`` brings it the n shards, the reduction combines them,
``allgather`` returns the result, with the traffic of a ring allreduce. Horovod never fuses
alltoall, but does fuse allgather: of a small bucket every rank gathers all codes and reduces them
itself. The dither belongs to the element, so that both ways give the same bits.
"""

from collections.abc import Sequence

import torch

from horovod_gqsgd import shards
from horovod_gqsgd.agreement import ReductionError
from horovod_gqsgd.config import Config
from horovod_gqsgd.sections import Section
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.bucket import Bucket, make_bucket
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Steps, overlapped
from horovod_gqsgd.torch.memory import Memory


def exponential(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Steps:
    """Norms by an allreduce, codes by alltoall and allgather or by allgather alone."""
    bucket = make_bucket(tensors, outputs, config, call, memory, place)
    yield from bucket.agree()

    codes = bucket.buffer("codes", bucket.plan.length, torch.uint8)
    small = shards.gathers(len(codes) // config.bits, config.bits, bucket.codec.n)
    # Gathered codes have been sent when they are reduced: the result takes their place.
    reduced = codes if small else bucket.buffer("reduced", len(codes), torch.uint8)
    way = _gather if small else _scatter
    sections = bucket.sections("codes", whole=small)
    exchanges = (
        _section(bucket, codes, reduced, section, way(bucket, codes, reduced, section, name))
        for section, name in sections
    )
    # All at once: alltoalls are not fused, and each is carried out while others are reduced.
    yield from overlapped(exchanges, at_once=len(sections))
    bucket.release()


def _section(
    bucket: Bucket, codes: torch.Tensor, reduced: torch.Tensor, section: Section, exchange: Steps
) -> Steps:
    """Encode, exchange and decode a part of the codes."""
    bucket.encode(codes, section)
    yield from bucket.settle()  # what follows is not for ranks that have joined
    yield from exchange
    bucket.decode(reduced, section)


def _gather(
    bucket: Bucket, codes: torch.Tensor, reduced: torch.Tensor, _section: Section, name: str
) -> Steps:
    """All codes, which are one section, to all ranks; each reduces all of them."""
    bits, n = bucket.codec.config.bits, bucket.codec.n
    everyone = bucket.buffer("everyone", n * codes.numel(), torch.uint8)
    statistics.allgather("code", codes.nbytes, n)
    statistics.sends += 1
    yield native.allgather(codes.view(-1, bits), everyone, name, bucket.call.process_set)
    yield from _reduce(bucket, everyone, reduced, 0)


def _scatter(
    bucket: Bucket, codes: torch.Tensor, reduced: torch.Tensor, section: Section, name: str
) -> Steps:
    """Shards to their owners; each reduces its own, and all gather the results."""
    call, codec, bits = bucket.call, bucket.codec, bucket.codec.config.bits
    rows = codes[section.low : section.high].view(-1, bits)
    bounds = shards.bounds(len(rows), codec.n)
    low, high = bounds[codec.rank], bounds[codec.rank + 1]
    share, splits = rows[low:high].numel(), torch.tensor(bounds, dtype=torch.int32).diff()
    shard = bucket.buffer(f"shard {section.low}", codec.n * share, torch.uint8)
    statistics.alltoall("code", rows.nbytes, share)
    statistics.sends += 1
    yield native.alltoall(rows, splits, shard, name, call.process_set)

    mine = bucket.buffer(f"mine {section.low}", share, torch.uint8)
    failure = None
    try:
        yield from _reduce(bucket, shard, mine, section.low // bits + low)
    except ReductionError as error:
        # The others wait for this shard: its absence tells them that there will be none.
        failure, mine = error, mine[:0]
    result = reduced[section.low : section.high].view(-1, bits)
    statistics.allgather("code", mine.nbytes, codec.n)
    statistics.sends += 1
    yield native.allgather(mine.view(-1, bits), result, f"{name}.reduced", call.process_set)
    if failure:
        raise failure
    if len(result) < len(rows):
        raise ReductionError(call.name, codec.config.reducer.name)


def _reduce(bucket: Bucket, rows: torch.Tensor, reduced: torch.Tensor, low: int) -> Steps:
    """Combine the groups from ``low`` on, as the ranks sent them one after the other."""
    try:
        with statistics.time("reduce"):
            bucket.reduce(rows.view(bucket.codec.n, -1), reduced, low)
        yield from bucket.accept()
    except Exception as error:
        name = bucket.codec.config.reducer.name
        raise ReductionError(bucket.call.name, name, error) from error
