"""Exchanges: traced once, run at every step.

The graph has the rounds of `codecs` in it, as `horovod_gqsgd.exchange` goes through them. Its nodes
are stages, as those of `agree`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement, shards
from horovod_gqsgd.agreement import ReductionError
from horovod_gqsgd.codecs import Round
from horovod_gqsgd.plan import Plan
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow.agree import Agreement
from horovod_gqsgd.tensorflow.stage import choose, flat, stage
from horovod_gqsgd.tensorflow.worker import on_worker
from horovod_gqsgd.transports import horovod_tensorflow as native


class Exchange(Agreement):
    """From gradients to the mean of all ranks."""

    def run(self, tensors: Sequence[Any], sizes: Any) -> list[Any]:
        """The graph; flat tensors come back."""
        own, *agreed = self.agree(tensors, sizes)
        common = [*agreed, sizes]
        codec = self.codec(self.config, *native.world(self.call.process_set))
        self.reduces = any(each.reduce for rounds in codec.ways() for each in rounds)
        ways = [partial(self.travel, rounds, common, [own, *tensors]) for rounds in codec.ways()]
        if len(ways) == 1:
            return ways[0]()
        length = sum(codec.length(sizes[i]) for i in range(len(tensors)))
        return choose(codec.second_way(length, self.call.world_size()), *reversed(ways))

    def travel(self, rounds: Sequence[Round], common: list[Any], mine: Sequence[Any]) -> Any:
        """Encode, go through the rounds, decode."""
        kind = tf.as_dtype(self.codec.dtype)
        sent = [kind, tf.int32] if rounds[0].kind == "scatter" else [kind]
        payload = self.stage("encode", [*common, *mine], sent, rounds[0])
        for i, each in enumerate(rounds):
            received = self.meet(each, self.place + i, *payload)
            if i + 1 < len(rounds):
                payload = self.stage("combine", [*common, received], [kind])
        return self.stage("finish", [*common, received], self.dtypes, rounds[-1])

    def meet(self, each: Round, place: int, payload: Any, splits: Any = None) -> Any:
        """The collective of a round."""
        if each.kind == "sum":
            return self.call.sum(place, payload)
        if each.kind == "gather":
            return self.call.gather(place, payload)
        return self.call.scatter(place, payload, splits)

    @on_worker
    def encode(
        self,
        first: Round,
        head: np.ndarray,
        sums: np.ndarray,
        sizes: np.ndarray,
        own: np.ndarray,
        *gradients: np.ndarray,
    ) -> list[np.ndarray]:
        """Gradients to a payload, or descriptions in its place.

        To be scattered, with the elements that go to every rank.
        """
        plan = self.plan(sizes)
        if not plan.by_max:
            self.settle(plan, head, sums)
        elif not agreement.read_header(head)[0]:
            return self.told(plan, first)
        agreed = self.begin(plan, head, sums)
        payload = self.buffer(first.tag, plan.length, self.codec.dtype)
        plan.encode([flat(gradient) for gradient in gradients], agreed, payload, own=own)
        return [payload, *self.send(plan, first)]

    def told(self, plan: Plan, first: Round) -> list[np.ndarray]:
        """In place of a payload: what this rank has, for every other one."""
        if first.kind == "sum":
            return [self.descriptions(plan, self.codec.dtype)]
        row, n = plan.description(), plan.codec.n
        if first.kind == "gather":
            return [row]
        return [np.tile(row, n), np.full(n, row.size, np.int32)]

    def send(self, plan: Plan, first: Round) -> list[np.ndarray]:
        """Count what is sent; the elements that every rank owns, where they are scattered."""
        what, n = self.codec.what, plan.codec.n
        itemsize = np.dtype(self.codec.dtype).itemsize
        nbytes = plan.length * itemsize
        if first.kind != "scatter":
            count = statistics.allreduce if first.kind == "sum" else statistics.allgather
            count(what, nbytes, n)
            return []
        splits = np.diff(self.bounds(plan)).astype(np.int32)
        statistics.alltoall(what, nbytes, int(splits[plan.codec.rank]) * itemsize)
        return [splits]

    @on_worker
    def combine(
        self, head: np.ndarray, _sums: np.ndarray, sizes: np.ndarray, shard: np.ndarray
    ) -> list[np.ndarray]:
        """Everybody's payloads of this rank's shard to one; none if the reduction fails."""
        plan = self.plan(sizes)
        self.settle(plan, head, shard)
        low, high = self.bounds(plan)[plan.codec.rank :][:2]
        mine = self.buffer("reduced", high - low, self.codec.dtype)
        self.memory.failure = None
        try:
            self.reduce(plan, head, shard, mine, low // plan.codec.unit)
        except ReductionError as error:
            # The others wait for this shard: its absence tells them that there will be none.
            self.memory.failure, mine = error, mine[:0]
        statistics.allgather(self.codec.what, mine.nbytes, plan.codec.n)
        statistics.sends += 1
        return [mine]

    @on_worker
    def finish(
        self,
        last: Round,
        head: np.ndarray,
        sums: np.ndarray,
        sizes: np.ndarray,
        received: np.ndarray,
    ) -> list[np.ndarray]:
        """What came back in the last round to gradients."""
        plan = self.plan(sizes)
        if last.kind == "gather" and not last.reduce:
            self.insist(plan, received.size)
        else:
            self.settle(plan, head, received)
        if last.reduce:
            rows, received = received, self.buffer("reduced", plan.length, self.codec.dtype)
            self.memory.failure = None
            try:
                self.reduce(plan, head, rows, received, 0)
            except ReductionError as error:
                if self.call.members in (None, len(self.dtypes)):
                    raise
                self.memory.failure = error  # here alone: others wait for the rest of the group
        outputs = self.outputs(plan.sizes)
        plan.decode(received, plan.read(head, sums), [flat(output) for output in outputs])
        return outputs

    def reduce(
        self, plan: Plan, head: np.ndarray, rows: np.ndarray, out: np.ndarray, low: int
    ) -> None:
        """Combine the units from ``low`` on, as the ranks sent them one after the other."""
        codec, dithers = plan.codec, plan.dithers(head)
        try:
            with statistics.time("reduce"):
                codec.reduce(rows.reshape(codec.n, -1), out, plan.sizes, low, dithers)
        except Exception as error:
            raise ReductionError(self.call.key, codec.reduction, error) from error

    def conclude(self, results: list[Any]) -> list[Any]:
        """The results of a group, the rest of which has been sent; raises what had to wait.

        As slices that begin where a stage says: TensorFlow drops a stateless node whose output
        nobody uses, and would let later exchanges wait for a stateful one.
        """
        if not self.reduces:
            return results
        size = self.call.size()  # for the same reason as in `agree`
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

    def insist(self, plan: Plan, gathered: int) -> None:
        """Raise if the reduction has failed, here or on a rank that gave nothing."""
        self.raise_failure()
        if gathered < plan.length:
            raise ReductionError(self.call.key, plan.codec.reduction)

    def bounds(self, plan: Plan) -> list[int]:
        """Where the shards begin, and where the last one ends, in elements of the payload."""
        unit = plan.codec.unit
        return [unit * bound for bound in shards.bounds(plan.length // unit, plan.codec.n)]

    def outputs(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Where to decode to."""
        return [
            self.buffer(f"output {i}", int(size), dtype.as_numpy_dtype)
            for i, (size, dtype) in enumerate(zip(sizes, self.dtypes, strict=True))
        ]
