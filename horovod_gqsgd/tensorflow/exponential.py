"""Exponential levels: codes reduced by a registered function, on alltoall and allgather.

As in `horovod_gqsgd.torch`: of a small bucket every rank gathers all codes and reduces them itself;
of a large one each reduces its own shard, and all gather the results.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from horovod_gqsgd import agreement, shards
from horovod_gqsgd.agreement import ReductionError
from horovod_gqsgd.bucket import Bucket
from horovod_gqsgd.codec import ExponentialCodec
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.stage import choose, flat, stage
from horovod_gqsgd.tensorflow.worker import on_worker


class Exponential(Exchange):
    """Norms by an allreduce, codes by alltoall and allgather or by allgather alone."""

    codec = ExponentialCodec

    def run(self, tensors: Sequence[Any], sizes: Any) -> list[Any]:
        """The graph; flat tensors come back."""
        common = [*self.agree(tensors, sizes), sizes]
        groups = sum(shards.group_count(sizes[i]) for i in range(len(tensors)))
        small = shards.gathers(groups, self.config.bits, self.call.world_size())
        return choose(
            small, partial(self.gather, common, tensors), partial(self.scatter, common, tensors)
        )

    def gather(self, common: list[Any], tensors: Sequence[Any]) -> list[Any]:
        """All codes to all ranks; each reduces all of them."""
        codes, _splits = self.stage(
            self.encode_to_gather, [*common, *tensors], [tf.uint8, tf.int32]
        )
        everyone = self.call.later(mpi_ops.allgather, self.place, codes)
        return self.stage(self.reduce_all, [*common, everyone], self.dtypes)

    def scatter(self, common: list[Any], tensors: Sequence[Any]) -> list[Any]:
        """Shards to their owners; each reduces its own, and all gather the results."""
        codes, splits = self.stage(
            self.encode_to_scatter, [*common, *tensors], [tf.uint8, tf.int32]
        )
        shard, _splits = self.call.later(mpi_ops.alltoall, self.place, codes, splits)
        [mine] = self.stage(self.reduce_shard, [*common, shard], [tf.uint8])
        everything = self.call.later(mpi_ops.allgather, self.place + 1, mine)
        return self.stage(self.decode, [*common, everything], self.dtypes)

    def encode_to_gather(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """Gradients to codes, or a description in their place."""
        return self.encode(False, *arguments)

    def encode_to_scatter(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """Gradients to codes, or descriptions in their place, with the shares of all ranks."""
        return self.encode(True, *arguments)

    @on_worker
    def encode(
        self,
        scatter: bool,
        head: np.ndarray,
        sums: np.ndarray,
        sizes: np.ndarray,
        *gradients: np.ndarray,
    ) -> list[np.ndarray]:
        """Codes, and how many bytes of them go to every rank when they are scattered."""
        bucket = self.bucket(sizes)
        if not bucket.by_max:
            self.settle(bucket, head, sums)
        elif not agreement.read_header(head)[0]:
            return self.rows(bucket, scatter)
        agreed = self.begin(bucket, head, sums)
        codes = self.buffer("codes", bucket.length, np.uint8)
        bucket.encode([flat(gradient) for gradient in gradients], agreed, codes)
        return [codes, self.send(bucket, scatter)]

    def rows(self, bucket: Bucket, scatter: bool) -> list[np.ndarray]:
        """In place of codes and shares: this rank's description, for every other one."""
        row, n = bucket.description(), bucket.codec.n
        return [np.tile(row, n if scatter else 1), np.full(n, row.size, np.int32)]

    def send(self, bucket: Bucket, scatter: bool) -> np.ndarray:
        """The bytes of codes that each rank owns; counts what is sent."""
        splits = np.diff(self.bounds(bucket)).astype(np.int32)
        if scatter:
            statistics.alltoall("code", bucket.length, int(splits[bucket.codec.rank]))
        else:
            statistics.allgather("code", bucket.length, bucket.codec.n)
        return splits

    @on_worker
    def reduce_all(
        self, head: np.ndarray, sums: np.ndarray, sizes: np.ndarray, everyone: np.ndarray
    ) -> list[np.ndarray]:
        """Everybody's codes to gradients."""
        bucket = self.bucket(sizes)
        self.settle(bucket, head, everyone)
        reduced = self.buffer("reduced", bucket.length, np.uint8)
        self.memory.failure = None
        try:
            self.reduce(bucket, head, everyone, reduced, 0)
        except ReductionError as error:
            if self.call.members in (None, len(self.dtypes)):
                raise
            self.memory.failure = error  # here alone: the others wait for the rest of the group
        return self.decoded(bucket, head, sums, reduced)

    @on_worker
    def reduce_shard(
        self, head: np.ndarray, _sums: np.ndarray, sizes: np.ndarray, shard: np.ndarray
    ) -> list[np.ndarray]:
        """Everybody's codes of this rank's shard to one; none if the reduction fails."""
        bucket = self.bucket(sizes)
        self.settle(bucket, head, shard)
        low, high = self.bounds(bucket)[bucket.codec.rank :][:2]
        mine = self.buffer("reduced", high - low, np.uint8)
        self.memory.failure = None
        try:
            self.reduce(bucket, head, shard, mine, low // self.config.bits)
        except ReductionError as error:
            # The others wait for this shard: its absence tells them that there will be none.
            self.memory.failure, mine = error, mine[:0]
        statistics.allgather("code", mine.nbytes, bucket.codec.n)
        statistics.sends += 1
        return [mine]

    @on_worker
    def decode(
        self, head: np.ndarray, sums: np.ndarray, sizes: np.ndarray, everything: np.ndarray
    ) -> list[np.ndarray]:
        """Reduced codes to gradients."""
        bucket = self.bucket(sizes)
        self.insist(bucket, everything.size)
        return self.decoded(bucket, head, sums, everything)

    def reduce(
        self,
        bucket: Bucket,
        head: np.ndarray,
        rows: np.ndarray,
        reduced: np.ndarray,
        low: int,
    ) -> None:
        """Combine the groups from ``low`` on, as the ranks sent them one after the other."""
        codec = bucket.codec
        assert isinstance(codec, ExponentialCodec)
        dithers = bucket.dithers(head)
        try:
            with statistics.time("reduce"):
                codec.reduce(rows.reshape(codec.n, -1), reduced, bucket.sizes, low, dithers)
        except Exception as error:
            raise ReductionError(self.call.key, self.config.reducer.name, error) from error

    def decoded(
        self, bucket: Bucket, head: np.ndarray, sums: np.ndarray, reduced: np.ndarray
    ) -> list[np.ndarray]:
        """Gradients from reduced codes."""
        outputs = self.outputs(bucket.sizes)
        bucket.decode(reduced, bucket.read(head, sums), [flat(output) for output in outputs])
        return outputs

    def conclude(self, results: list[Any]) -> list[Any]:
        """The results of a group, the rest of which has been sent; raises what had to wait.

        As slices that begin where a stage says: TensorFlow drops a stateless node whose output
        nobody uses, and would let later exchanges wait for a stateful one.
        """
        size = mpi_ops.size_op(self.call.process_set)  # for the same reason as in `agree`
        with tf.control_dependencies(results):
            [zero] = stage(self.confess, [size], [tf.int32])
        return [tf.slice(each, tf.tile(zero, [tf.rank(each)]), tf.shape(each)) for each in results]

    @on_worker
    def confess(self, _size: np.ndarray) -> list[np.ndarray]:
        """Zero; raises if the reduction has failed here."""
        self.raise_failure()
        zero = self.buffer("zero", 1, np.int32)
        zero[:] = 0
        return [zero]

    def raise_failure(self) -> None:
        """Raise what the reduction has raised in this step."""
        failure, self.memory.failure = self.memory.failure, None  # its traceback has buffers in it
        if failure:
            raise failure

    def insist(self, bucket: Bucket, gathered: int) -> None:
        """Raise if the reduction has failed, here or on a rank that gave nothing."""
        self.raise_failure()
        if gathered < bucket.length:
            raise ReductionError(self.call.key, self.config.reducer.name)

    def bounds(self, bucket: Bucket) -> list[int]:
        """Where the shards begin, and where the last one ends, in bytes."""
        bits = self.config.bits
        return [bits * bound for bound in shards.bounds(bucket.length // bits, bucket.codec.n)]
