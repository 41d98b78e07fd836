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
from horovod_gqsgd.codec import ExponentialCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.torch import native
from horovod_gqsgd.torch.bucket import Bucket, make_bucket
from horovod_gqsgd.torch.device import Cuda
from horovod_gqsgd.torch.exchange import Call, Memory, Steps


def exponential(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    config: Config,
    call: Call,
    memory: Memory,
    place: Cuda | None,
) -> Steps:
    """Norms by an allreduce, codes by alltoall and allgather or by allgather alone."""
    codec = ExponentialCodec(config, *native.world(call.process_set))
    bucket = make_bucket(tensors, outputs, codec, call, memory, place)
    yield from bucket.agree(roll=True)

    lengths = [codec.code_bytes(size) for size in bucket.sizes]
    codes = bucket.buffer("codes", sum(lengths), torch.uint8).view(-1, config.bits)
    bucket.encode(codes.view(-1).split(lengths))
    yield from bucket.settle()  # these collectives are not for ranks that have joined
    small = shards.gathers(len(codes), config.bits, codec.n)
    reduced = yield from (_gather if small else _scatter)(bucket, codec, codes)
    bucket.decode(reduced.split(lengths))


def _gather(bucket: Bucket, codec: ExponentialCodec, codes: torch.Tensor) -> Steps:
    """All codes to all ranks; each reduces all of them."""
    call = bucket.call
    everyone = bucket.buffer("everyone", codec.n * codes.numel(), torch.uint8)
    statistics.allgather("code", codes.nbytes, codec.n)
    statistics.sends += 1
    yield native.allgather(codes, everyone, f"{call.name}.gq.codes", call.process_set)
    reduced = codes.view(-1)  # its bytes have been sent
    _reduce(bucket, codec, everyone, reduced, 0)
    return reduced


def _scatter(bucket: Bucket, codec: ExponentialCodec, codes: torch.Tensor) -> Steps:
    """Shards to their owners; each reduces its own, and all gather the results."""
    call = bucket.call
    bounds = shards.bounds(len(codes), codec.n)
    low, high = bounds[codec.rank], bounds[codec.rank + 1]
    share, splits = codes[low:high].numel(), torch.tensor(bounds, dtype=torch.int32).diff()
    shard = bucket.buffer("shard", codec.n * share, torch.uint8)
    statistics.alltoall("code", codes.nbytes, share)
    statistics.sends += 1
    yield native.alltoall(codes, splits, shard, f"{call.name}.gq.codes", call.process_set)

    mine = bucket.buffer("mine", share, torch.uint8).view(-1, codes.shape[1])
    failure = None
    try:
        _reduce(bucket, codec, shard, mine.view(-1), low)
    except ReductionError as error:
        # The others wait for this shard: its absence tells them that there will be none.
        failure, mine = error, mine[:0]
    everything = bucket.buffer("everything", codes.numel(), torch.uint8)
    statistics.allgather("code", mine.nbytes, codec.n)
    statistics.sends += 1
    yield native.allgather(mine, everything, f"{call.name}.gq.reduced", call.process_set)
    if failure:
        raise failure
    if len(everything) < len(codes):
        raise ReductionError(call.name, codec.config.reducer.name)
    return everything.view(-1)


def _reduce(
    bucket: Bucket, codec: ExponentialCodec, rows: torch.Tensor, reduced: torch.Tensor, low: int
) -> None:
    """Combine the groups from ``low`` on, as the ranks sent them one after the other."""
    try:
        with statistics.time("reduce"):
            bucket.reduce(rows.view(codec.n, -1), reduced, low)
    except Exception as error:
        name = codec.config.reducer.name
        raise ReductionError(bucket.call.name, name, error) from error
