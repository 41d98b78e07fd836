"""Exchanges where the gradients are: on a GPU by CUDA kernels, else as without one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement, shards
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.codecs import Round
from horovod_gqsgd.cuda_kernels.launch import Launcher, tree_of
from horovod_gqsgd.plan import Plan
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow import device
from horovod_gqsgd.tensorflow.device import Cuda
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.stage import carried, device_stage, on_host
from horovod_gqsgd.tensorflow.worker import on_worker

#: Gradient types as kernels see them, and in whose memory they are.
SEEN_AS = {
    tf.float16: (np.int16, tf.float16),
    tf.bfloat16: (np.uint16, tf.float16),
    tf.float32: (np.float32, tf.float32),
    tf.float64: (np.float64, tf.float64),
}

#: Norms and keys of every tensor, for kernels.
Prepared = list[tuple[Any, Any]]


class OnDevice(Exchange):
    """Every stage has a twin on tensors of a GPU, ``cuda_<stage>``, and chooses when it runs.

    Tensors are as `device_stage` carries them: int32 as float32.
    """

    def stage(
        self, name: str, inputs: Sequence[Any], dtypes: Sequence[tf.DType], *fixed: Any
    ) -> Any:
        """A stage where its inputs are."""
        on_device = getattr(self, f"cuda_{name}")
        function = partial(getattr(self, name), *fixed)
        kinds = [each.dtype for each in inputs]

        def either(*given: Any) -> list[Any]:
            place = device.of([each for each in given if tf.is_tensor(each)])
            if not place:
                return on_host(function, given, kinds)
            try:
                return on_device(place, *fixed, *given)
            finally:  # where it raises, kernels may still use memory that nobody else holds
                place.finish()

        return device_stage(either, inputs, dtypes)

    @on_worker
    def cuda_norm(self, place: Cuda, _size: Any, *gradients: Any) -> list[Any]:
        """Gradients to head and sums."""
        plan = self.plan([gradient.shape.num_elements() for gradient in gradients])
        head = place.memory(plan.head_size, tf.float32)
        sums = place.memory(plan.sums_size, tf.float64)
        codec, launcher = plan.codec, self.launcher(plan, place)
        nbytes = sum(g.shape.num_elements() * g.dtype.size for g in gradients)
        statistics.begin(len(gradients), nbytes, codec.n)
        statistics.allreduce("norm", 4 * plan.head_size + 8 * plan.sums_size, codec.n)
        roll = HEADER + codec.rank if plan.start > HEADER else -1
        with statistics.time("norm"):
            start = place.array(head, np.int32)
            launcher.write_header(start, plan.fingerprint, self.memory.step, roll)
            for gradient, part in zip(gradients, _norms(plan, place, head, sums), strict=True):
                launcher.local_norms(_seen(place, gradient), part)
            place.finish()
        return [head, sums]

    @on_worker
    def cuda_announce(self, _place: Cuda, head: Any, sums: Any, sizes: Any) -> list[Any]:
        """The sums, or descriptions in their place."""
        plan = self.plan(sizes)
        if agreement.read_header(_header(plan, head))[0]:
            return [sums]
        return [tf.constant(self.descriptions(plan, np.float64))]

    def disagrees(self, plan: Plan, head: Any, sums: Any) -> bool:
        """Whether descriptions must follow the norms; raises if they came with them.

        Of ranks that agree the step counts, and all must be there that the scheme needs.
        """
        header = _header(plan, head)
        agreed, step = agreement.read_header(header)
        if not agreed and plan.by_max:
            return True
        if not agreed:
            self.settle(plan, header, sums.numpy())
        plan.dithers(header)
        self.memory.step = step + 1
        statistics.sends += 1
        return False

    def launcher(self, plan: Plan, place: Cuda) -> Launcher:
        """The kernels for this rank."""
        codec = plan.codec
        return Launcher(self.config, codec.rank, codec.n, place.run, place.empty)

    def prepare(self, plan: Plan, place: Cuda, head: Any, sums: Any) -> Prepared:
        """Norms and keys of every tensor."""
        launcher, start = self.launcher(plan, place), place.array(head, np.int32)
        return [
            launcher.prepare(part, start, name, size)
            for part, name, size in zip(
                _norms(plan, place, head, sums), plan.names, plan.sizes, strict=True
            )
        ]

    @on_worker
    def cuda_encode(
        self,
        place: Cuda,
        first: Round,
        head: Any,
        sums: Any,
        sizes: Any,
        _own: Any,
        *gradients: Any,
    ) -> list[Any]:
        """Gradients to a payload, or descriptions in its place."""
        plan = self.plan(sizes)
        if self.disagrees(plan, head, sums):
            return [carried(tf.constant(each)) for each in self.told(plan, first)]
        payload = place.memory(plan.length, self.carrier)
        launcher, prepared = self.launcher(plan, place), self.prepare(plan, place, head, sums)
        parts = _parts(place, payload, self.codec.dtype, plan.spans)
        with statistics.time("encode"):
            for gradient, (norms, keys), part in zip(gradients, prepared, parts, strict=True):
                launcher.encode(_seen(place, gradient), norms, keys, part)
            place.finish()
        return [payload, *(carried(tf.constant(each)) for each in self.send(plan, first))]

    @on_worker
    def cuda_combine(self, place: Cuda, head: Any, sums: Any, sizes: Any, shard: Any) -> list[Any]:
        """Everybody's payloads of this rank's shard to one."""
        plan = self.plan(sizes)
        self.cuda_settle(plan, head, shard)
        low, high = self.bounds(plan)[plan.codec.rank :][:2]
        self.memory.failure = None
        prepared = self.prepare(plan, place, head, sums)
        mine = self.cuda_reduce(plan, place, prepared, shard, low, high)
        place.finish()
        itemsize = np.dtype(self.codec.dtype).itemsize
        statistics.allgather(self.codec.what, (high - low) * itemsize, plan.codec.n)
        statistics.sends += 1
        return [mine]

    @on_worker
    def cuda_finish(
        self, place: Cuda, last: Round, head: Any, sums: Any, sizes: Any, received: Any
    ) -> list[Any]:
        """What came back in the last round to gradients."""
        plan = self.plan(sizes)
        if last.kind == "gather" and not last.reduce:
            self.insist(plan, received.shape.num_elements())
        else:
            self.cuda_settle(plan, head, received)
        prepared = self.prepare(plan, place, head, sums)
        if last.reduce:
            received = self.cuda_reduce(plan, place, prepared, received, 0, plan.length)
        launcher = self.launcher(plan, place)
        parts = _parts(place, received, self.codec.dtype, plan.spans)
        outputs = []
        with statistics.time("decode"):
            for size, dtype, (norms, _keys), part in zip(
                plan.sizes, self.dtypes, prepared, parts, strict=True
            ):
                seen, stored = SEEN_AS[dtype]
                output = place.memory(size, stored)
                launcher.decode(part, norms, place.array(output, seen), plan.factor)
                outputs.append(tf.bitcast(output, dtype))
            place.finish()
        return outputs

    @property
    def carrier(self) -> tf.DType:
        """The type of tensors that carry payloads."""
        return tf.float32 if self.codec.dtype == np.int32 else tf.as_dtype(self.codec.dtype)

    def cuda_settle(self, plan: Plan, head: Any, told: Any) -> None:
        """Raise where the ranks disagree; ``told`` are then their descriptions."""
        header = _header(plan, head)
        if not agreement.read_header(header)[0]:
            self.settle(plan, header, tf.bitcast(told, tf.as_dtype(self.codec.dtype)).numpy())

    def cuda_reduce(
        self, plan: Plan, place: Cuda, prepared: Prepared, rows: Any, low: int, high: int
    ) -> Any:
        """Combine the elements ``low`` … ``high − 1`` of all ranks, which follow one another."""
        launcher, n, unit = self.launcher(plan, place), plan.codec.n, plan.codec.unit
        rows, dtype = place.here(rows), self.codec.dtype
        nodes = place.array(tf.constant(tree_of(n).view(np.float32)), np.int32)
        reduced = place.memory(high - low, self.carrier)
        with statistics.time("reduce"):
            for piece in shards.pieces(plan.sizes, low // unit, high // unit):
                first, last = piece.low * unit, piece.high * unit
                launcher.reduce(
                    place.array(rows, dtype, first), high - low,
                    place.array(reduced, dtype, first, last - first),
                    prepared[piece.tensor][1], piece.elements, piece.start, nodes,
                )  # fmt: skip
        return reduced


def _header(plan: Plan, head: Any) -> np.ndarray:
    """On the host; the norms stay where they are."""
    return head[: plan.start].numpy().view(np.int32)


def _seen(place: Cuda, gradient: Any) -> Any:
    return place.array(gradient, SEEN_AS[gradient.dtype][0])


def _parts(place: Cuda, tensor: Any, dtype: Any, spans: Sequence[slice]) -> list[Any]:
    """Parts of a tensor as kernels take them."""
    tensor = place.here(tensor)
    return [place.array(tensor, dtype, span.start, span.stop - span.start) for span in spans]


def _norms(plan: Plan, place: Cuda, head: Any, sums: Any) -> list[Any]:
    """The norms of every tensor, in the vector that carries them."""
    vector, dtype = (head, np.int32) if plan.by_max else (sums, np.float64)
    return _parts(place, vector, dtype, plan.norm_spans)
