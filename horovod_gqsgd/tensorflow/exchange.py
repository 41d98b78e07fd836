"""Exchanges: traced once, run at every step.

Methods marked `on_worker` are stages: they run at run time, on arrays, and read rank, world size
and call counter there. All that they hand on travels along the edges of the graph, and so
TensorFlow runs the stages of different gradients in any order, while Horovod's collectives are
under way.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import Max, Sum

from horovod_gqsgd import agreement
from horovod_gqsgd.bucket import Agreed, Bucket
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow import native
from horovod_gqsgd.tensorflow.memory import Memory, recall, store
from horovod_gqsgd.tensorflow.native import Call
from horovod_gqsgd.tensorflow.stage import flat, stage
from horovod_gqsgd.tensorflow.worker import on_worker


class Exchange:
    """One tensor, or a group, of the given types."""

    codec: type[LinearCodec] | type[ExponentialCodec]

    def __init__(self, config: Config, call: Call, dtypes: Sequence[tf.DType]) -> None:
        self.config, self.call, self.dtypes = config, call, dtypes
        #: Of the collective that follows the norms.
        self.place = 1 if config.p == "inf" else 2
        self.node = call.node()
        self._bucket: tuple[Any, Bucket] | None = None  # the last one, with its key

    @property
    def memory(self) -> Memory:
        """What stays from step to step."""
        return recall(self.call.process_set, self.node)

    def buffer(self, role: str, size: int, dtype: Any) -> np.ndarray:
        """A flat array, in memory of an earlier step if there is some."""
        return store.buffer(self.call.process_set, self.node, role, size, dtype)

    def bucket(self, sizes: Iterable[int]) -> Bucket:
        """The tensors in the world as it is now."""
        rank, n = native.world(self.call.process_set)
        ranks = native.ranks(self.call.process_set)
        key = (rank, n, ranks, [int(size) for size in sizes])
        if self._bucket is None or self._bucket[0] != key:
            names = [dtype.name for dtype in self.dtypes]
            scheme = (self.call.key, key[-1], names, self.call.factor(n), ranks)
            self._bucket = key, Bucket(self.codec(self.config, rank, n), *scheme)
        return self._bucket[1]

    def agree(self, tensors: Sequence[Any], sizes: Any) -> tuple[Any, Any]:
        """Exchange norms; returns head and sums as all ranks have them."""
        # The world size is an input for a reason: without one that TensorFlow cannot know before,
        # it would run the stage once for a constant gradient, and never again.
        size = mpi_ops.size_op(self.call.process_set)
        head, sums = self.stage(self.norm, [size, *tensors], [tf.int32, tf.float64])
        head = self.call.first(head, Max)
        if tf.executing_eagerly() and not agreement.read_header(head.numpy())[0]:
            self.disagree(sizes)
        if self.config.p != "inf":
            [sums] = self.stage(self.announce, [head, sums, sizes], [tf.float64])
            sums = self.call.later(mpi_ops._allreduce, 1, sums, op=Sum)
        return head, sums

    def conclude(self, results: list[Any]) -> list[Any]:
        """The results of a group, the rest of which has been sent."""
        return results

    def stage(self, function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]) -> Any:
        """A method below as a node of the graph."""
        return stage(function, inputs, dtypes)

    def disagree(self, sizes: Iterable[int]) -> None:
        """Tell one another what one has, and raise what differs."""
        bucket = self.bucket(sizes)
        mine = tf.constant(bucket.description()[None])
        everyone = self.call.later(mpi_ops.allgather, 1, mine).numpy()
        raise agreement.explain(self.call.key, everyone, bucket.ranks)

    @on_worker
    def norm(self, _size: np.ndarray, *gradients: np.ndarray) -> list[np.ndarray]:
        """Gradients to head and sums."""
        arrays = [flat(gradient) for gradient in gradients]
        bucket = self.bucket([array.size for array in arrays])
        head = self.buffer("head", bucket.head_size, np.int32)
        sums = self.buffer("sums", bucket.sums_size, np.float64)
        n = bucket.codec.n
        statistics.begin(len(arrays), sum(array.nbytes for array in arrays), n)
        statistics.allreduce("norm", head.nbytes + sums.nbytes, n)
        bucket.write(arrays, head, sums, self.memory.step)
        return [head, sums]

    @on_worker
    def announce(self, head: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
        """The sums, or descriptions in their place."""
        if agreement.read_header(head)[0]:
            return [sums]
        return [self.descriptions(self.bucket(sizes), np.float64)]

    def descriptions(self, bucket: Bucket, dtype: type) -> np.ndarray:
        """For Sum: a row for every rank, in which only this one's is filled.

        When ranks disagree, the collective after the header carries these, and the stage after it
        raises what differs. So all ranks do the same, and none is left waiting; and a graph needs
        no branch for it, which takes long to trace.
        """
        row = bucket.description()
        rows: np.ndarray = np.zeros((bucket.codec.n, row.size), dtype)
        rows[bucket.codec.rank] = row
        return rows.reshape(-1)

    def settle(self, bucket: Bucket, head: np.ndarray, told: np.ndarray) -> None:
        """Raise where the ranks disagree; ``told`` are then their descriptions."""
        if not agreement.read_header(head)[0]:
            rows = told.reshape(bucket.codec.n, -1).astype(np.uint8)
            raise agreement.explain(self.call.key, rows, bucket.ranks)

    def begin(self, bucket: Bucket, head: np.ndarray, sums: np.ndarray) -> Agreed:
        """Norms and dithers of this step, which counts."""
        agreed = bucket.read(head, sums)
        self.memory.step = agreement.read_header(head)[1] + 1
        statistics.sends += 1
        return agreed

    def outputs(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Where to decode to."""
        return [
            self.buffer(f"output {i}", int(size), dtype.as_numpy_dtype)
            for i, (size, dtype) in enumerate(zip(sizes, self.dtypes, strict=True))
        ]
