"""What precedes a payload: norms, and what the ranks have in common.

Methods marked `on_worker` are stages: they run at run time, on arrays, and read rank, world size
and call counter there. All that they hand on travels along the edges of the graph, and so
TensorFlow runs the stages of different gradients in any order, while Horovod's collectives are
under way.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement
from horovod_gqsgd.config import Config
from horovod_gqsgd.plan import Agreed, Plan
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow.memory import Memory, recall, store
from horovod_gqsgd.tensorflow.stage import flat, stage
from horovod_gqsgd.tensorflow.worker import on_worker
from horovod_gqsgd.transports import horovod_tensorflow as native
from horovod_gqsgd.transports.horovod_tensorflow import Call


class Agreement:
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
