"""Exchanges: traced once, run at every step.

The graph has the rounds of `codecs` in it, as `horovod_gqsgd.exchange` goes through them. Methods
marked `on_worker` are stages: they run at run time, on arrays, and read rank, world size and call
counter there. All that they hand on travels along the edges of the graph, and so TensorFlow runs
the stages of different gradients in any order, while Horovod's collectives are under way.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement, shards
from horovod_gqsgd.agreement import ReductionError
from horovod_gqsgd.codecs import Round
from horovod_gqsgd.config import Config
from horovod_gqsgd.plan import Agreed, Plan
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow.memory import Memory, recall, store
from horovod_gqsgd.tensorflow.stage import choose, flat, stage
from horovod_gqsgd.tensorflow.worker import on_worker
from horovod_gqsgd.transports import horovod_tensorflow as native
from horovod_gqsgd.transports.horovod_tensorflow import Call


class Exchange:
    """One tensor, or a group, of the given types."""

    def __init__(self, config: Config, call: Call, dtypes: Sequence[tf.DType]) -> None:
        self.config, self.call, self.dtypes = config, call, dtypes
        self.codec = config.codec
        #: Of the collective that follows the norms.
        self.place = 1 if config.p == "inf" else 2
        self.node = call.node()
        self._plan: tuple[Any, Plan] | None = None  # the last one, with its key

    @property
    def memory(self) -> Memory:
        """What stays from step to step."""
        return recall(self.call.process_set, self.node)

    def buffer(self, role: str, size: int, dtype: Any) -> np.ndarray:
        """A flat array, in memory of an earlier step if there is some."""
        return store.buffer(self.call.process_set, self.node, role, size, dtype)

    def plan(self, sizes: Iterable[int]) -> Plan:
        """The tensors in the world as it is now."""
        rank, n = native.world(self.call.process_set)
        ranks = native.ranks(self.call.process_set)
        key = (rank, n, ranks, [int(size) for size in sizes])
        if self._plan is None or self._plan[0] != key:
            names = [dtype.name for dtype in self.dtypes]
            scheme = (self.call.key, key[-1], names, self.call.factor(n), ranks)
            self._plan = key, Plan(self.codec(self.config, rank, n), *scheme)
        return self._plan[1]

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

    def agree(self, tensors: Sequence[Any], sizes: Any) -> tuple[Any, Any, Any]:
        """Exchange norms; returns this rank's head, and head and sums as all ranks have them."""
        # The world size is an input for a reason: without one that TensorFlow cannot know before,
        # it would run the stage once for a constant gradient, and never again.
        size = self.call.size()
        own, sums = self.stage("norm", [size, *tensors], [tf.int32, tf.float64])
        head = self.call.announce(own)
        if tf.executing_eagerly() and not agreement.read_header(head.numpy())[0]:
            self.disagree(sizes)
        if self.config.p != "inf":
            [sums] = self.stage("announce", [head, sums, sizes], [tf.float64])
            sums = self.call.sum(1, sums)
        return own, head, sums

    def stage(
        self, name: str, inputs: Sequence[Any], dtypes: Sequence[tf.DType], *fixed: Any
    ) -> Any:
        """A method below as a node of the graph; what is ``fixed`` does not travel in it."""
        return stage(partial(getattr(self, name), *fixed), inputs, dtypes)

    def disagree(self, sizes: Iterable[int]) -> None:
        """Tell one another what one has, and raise what differs."""
        plan = self.plan(sizes)
        everyone = self.call.gather(1, tf.constant(plan.description()[None])).numpy()
        raise agreement.explain(self.call.key, everyone, plan.ranks)

    @on_worker
    def norm(self, _size: np.ndarray, *gradients: np.ndarray) -> list[np.ndarray]:
        """Gradients to head and sums."""
        arrays = [flat(gradient) for gradient in gradients]
        plan = self.plan([array.size for array in arrays])
        head = self.buffer("head", plan.head_size, np.int32)
        sums = self.buffer("sums", plan.sums_size, np.float64)
        n = plan.codec.n
        statistics.begin(len(arrays), sum(array.nbytes for array in arrays), n)
        statistics.allreduce("norm", head.nbytes + sums.nbytes, n)
        plan.write(arrays, head, sums, self.memory.step)
        return [head, sums]

    @on_worker
    def announce(self, head: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
        """The sums, or descriptions in their place."""
        if agreement.read_header(head)[0]:
            return [sums]
        return [self.descriptions(self.plan(sizes), np.float64)]

    def descriptions(self, plan: Plan, dtype: type) -> np.ndarray:
        """For Sum: a row for every rank, in which only this one's is filled.

        When ranks disagree, the collective after the header carries these, and the stage after it
        raises what differs. So all ranks do the same, and none is left waiting; and a graph needs
        no branch for it, which takes long to trace.
        """
        row = plan.description()
        rows: np.ndarray = np.zeros((plan.codec.n, row.size), dtype)
        rows[plan.codec.rank] = row
        return rows.reshape(-1)

    def settle(self, plan: Plan, head: np.ndarray, told: np.ndarray) -> None:
        """Raise where the ranks disagree; ``told`` are then their descriptions."""
        if not agreement.read_header(head)[0]:
            rows = told.reshape(plan.codec.n, -1).astype(np.uint8)
            raise agreement.explain(self.call.key, rows, plan.ranks)

    def begin(self, plan: Plan, head: np.ndarray, sums: np.ndarray) -> Agreed:
        """Norms and dithers of this step, which counts."""
        agreed = plan.read(head, sums)
        self.memory.step = agreement.read_header(head)[1] + 1
        statistics.sends += 1
        return agreed

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
