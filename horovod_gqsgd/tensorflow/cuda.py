"""Exchanges where the gradients are: on a GPU by CUDA kernels, else as without one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement, shards
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.bucket import Bucket
from horovod_gqsgd.cuda_kernels.launch import Launcher, tree_of
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow import device
from horovod_gqsgd.tensorflow.device import Cuda
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.exponential import Exponential
from horovod_gqsgd.tensorflow.linear import Linear
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

    def stage(self, function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]) -> Any:
        """A stage where its inputs are."""
        on_device = getattr(self, f"cuda_{function.__name__}")

        kinds = [each.dtype for each in inputs]

        def either(*given: Any) -> list[Any]:
            place = device.of([each for each in given if tf.is_tensor(each)])
            if not place:
                return on_host(function, given, kinds)
            try:
                return on_device(place, *given)
            finally:  # where it raises, kernels may still use memory that nobody else holds
                place.finish()

        return device_stage(either, inputs, dtypes)

    @on_worker
    def cuda_norm(self, place: Cuda, _size: Any, *gradients: Any) -> list[Any]:
        """Gradients to head and sums."""
        bucket = self.bucket([gradient.shape.num_elements() for gradient in gradients])
        head = place.memory(bucket.head_size, tf.float32)
        sums = place.memory(bucket.sums_size, tf.float64)
        codec, launcher = bucket.codec, self.launcher(bucket, place)
        nbytes = sum(g.shape.num_elements() * g.dtype.size for g in gradients)
        statistics.begin(len(gradients), nbytes, codec.n)
        statistics.allreduce("norm", 4 * bucket.head_size + 8 * bucket.sums_size, codec.n)
        roll = HEADER + codec.rank if bucket.start > HEADER else -1
        with statistics.time("norm"):
            start = place.array(head, np.int32)
            launcher.write_header(start, bucket.fingerprint, self.memory.step, roll)
            for gradient, part in zip(gradients, _norms(bucket, place, head, sums), strict=True):
                launcher.local_norms(_seen(place, gradient), part)
            place.finish()
        return [head, sums]

    @on_worker
    def cuda_announce(self, _place: Cuda, head: Any, sums: Any, sizes: Any) -> list[Any]:
        """The sums, or descriptions in their place."""
        bucket = self.bucket(sizes)
        if agreement.read_header(_header(bucket, head))[0]:
            return [sums]
        return [tf.constant(self.descriptions(bucket, np.float64))]

    def disagrees(self, bucket: Bucket, head: Any, sums: Any) -> bool:
        """Whether descriptions must follow the norms; raises if they came with them.

        Of ranks that agree the step counts, and all must be there that the scheme needs.
        """
        header = _header(bucket, head)
        agreed, step = agreement.read_header(header)
        if not agreed and bucket.by_max:
            return True
        if not agreed:
            self.settle(bucket, header, sums.numpy())
        bucket.dithers(header)
        self.memory.step = step + 1
        statistics.sends += 1
        return False

    def launcher(self, bucket: Bucket, place: Cuda) -> Launcher:
        """The kernels for this rank."""
        codec = bucket.codec
        return Launcher(self.config, codec.rank, codec.n, place.run, place.empty)

    def prepare(self, bucket: Bucket, place: Cuda, head: Any, sums: Any) -> Prepared:
        """Norms and keys of every tensor."""
        launcher, start = self.launcher(bucket, place), place.array(head, np.int32)
        return [
            launcher.prepare(part, start, name, size)
            for part, name, size in zip(
                _norms(bucket, place, head, sums), bucket.names, bucket.sizes, strict=True
            )
        ]

    def quantise(
        self, run: Callable, place: Cuda, prepared: Prepared, gradients: Sequence[Any], parts: list
    ) -> None:
        """Encode every gradient into its part."""
        with statistics.time("encode"):
            for gradient, (norms, keys), part in zip(gradients, prepared, parts, strict=True):
                run(_seen(place, gradient), norms, keys, part)
            place.finish()

    def restore(
        self, run: Callable, bucket: Bucket, place: Cuda, prepared: Prepared, parts: list
    ) -> list[Any]:
        """Gradients from what has become of their parts."""
        outputs = []
        with statistics.time("decode"):
            for size, dtype, (norms, _keys), part in zip(
                bucket.sizes, self.dtypes, prepared, parts, strict=True
            ):
                seen, stored = SEEN_AS[dtype]
                output = place.memory(size, stored)
                run(part, norms, place.array(output, seen), bucket.factor)
                outputs.append(tf.bitcast(output, dtype))
            place.finish()
        return outputs


class CudaLinear(OnDevice, Linear):
    """Linear levels."""

    @on_worker
    def cuda_encode(self, place: Cuda, head: Any, sums: Any, *gradients: Any) -> list[Any]:
        """Gradients to words, or descriptions in their place."""
        bucket = self.bucket([gradient.shape.num_elements() for gradient in gradients])
        if self.disagrees(bucket, head, sums):
            return [carried(tf.constant(self.descriptions(bucket, np.int32)))]
        words = place.memory(bucket.length, tf.float32)
        run = self.launcher(bucket, place).encode_linear
        prepared = self.prepare(bucket, place, head, sums)
        parts = _parts(place, words, np.int32, bucket.spans)
        self.quantise(run, place, prepared, gradients, parts)
        statistics.allreduce("word", 4 * bucket.length, bucket.codec.n)
        return [words]

    @on_worker
    def cuda_decode(self, place: Cuda, head: Any, sums: Any, sizes: Any, words: Any) -> list[Any]:
        """Summed words to gradients."""
        bucket = self.bucket(sizes)
        header = _header(bucket, head)
        if not agreement.read_header(header)[0]:
            self.settle(bucket, header, tf.bitcast(words, tf.int32).numpy())
        run = self.launcher(bucket, place).decode_linear
        prepared = self.prepare(bucket, place, head, sums)
        parts = _parts(place, words, np.int32, bucket.spans)
        return self.restore(run, bucket, place, prepared, parts)


class CudaExponential(OnDevice, Exponential):
    """Exponential levels with a reduction that has a kernel."""

    def cuda_encode_to_gather(self, *arguments: Any) -> list[Any]:
        """Gradients to codes, or a description in their place."""
        return self.cuda_encode(False, *arguments)

    def cuda_encode_to_scatter(self, *arguments: Any) -> list[Any]:
        """Gradients to codes, or descriptions in their place, with the shares of all ranks."""
        return self.cuda_encode(True, *arguments)

    @on_worker
    def cuda_encode(
        self, scatter: bool, place: Cuda, head: Any, sums: Any, sizes: Any, *gradients: Any
    ) -> list[Any]:
        """Codes, and how many bytes of them go to every rank when they are scattered."""
        bucket = self.bucket(sizes)
        if self.disagrees(bucket, head, sums):
            return [*map(carried, map(tf.constant, self.rows(bucket, scatter)))]
        codes = place.memory(bucket.length, tf.uint8)
        run = self.launcher(bucket, place).encode_exponential
        prepared = self.prepare(bucket, place, head, sums)
        parts = _parts(place, codes, np.uint8, bucket.spans)
        self.quantise(run, place, prepared, gradients, parts)
        return [codes, carried(tf.constant(self.send(bucket, scatter)))]

    @on_worker
    def cuda_reduce_all(
        self, place: Cuda, head: Any, sums: Any, sizes: Any, everyone: Any
    ) -> list[Any]:
        """Everybody's codes to gradients."""
        bucket = self.bucket(sizes)
        self.cuda_settle(bucket, head, everyone)
        prepared = self.prepare(bucket, place, head, sums)
        reduced = self.cuda_reduce(bucket, place, prepared, everyone, 0, bucket.length)
        return self.cuda_decoded(bucket, place, prepared, reduced)

    @on_worker
    def cuda_reduce_shard(
        self, place: Cuda, head: Any, sums: Any, sizes: Any, shard: Any
    ) -> list[Any]:
        """Everybody's codes of this rank's shard to one."""
        bucket = self.bucket(sizes)
        self.cuda_settle(bucket, head, shard)
        low, high = self.bounds(bucket)[bucket.codec.rank :][:2]
        self.memory.failure = None
        prepared = self.prepare(bucket, place, head, sums)
        mine = self.cuda_reduce(bucket, place, prepared, shard, low, high)
        place.finish()
        statistics.allgather("code", high - low, bucket.codec.n)
        statistics.sends += 1
        return [mine]

    @on_worker
    def cuda_decode(
        self, place: Cuda, head: Any, sums: Any, sizes: Any, everything: Any
    ) -> list[Any]:
        """Reduced codes to gradients."""
        bucket = self.bucket(sizes)
        self.insist(bucket, everything.shape.num_elements())
        prepared = self.prepare(bucket, place, head, sums)
        return self.cuda_decoded(bucket, place, prepared, everything)

    def cuda_settle(self, bucket: Bucket, head: Any, told: Any) -> None:
        """Raise where the ranks disagree; ``told`` are then their descriptions."""
        header = _header(bucket, head)
        if not agreement.read_header(header)[0]:
            self.settle(bucket, header, told.numpy())

    def cuda_reduce(
        self, bucket: Bucket, place: Cuda, prepared: Prepared, rows: Any, low: int, high: int
    ) -> Any:
        """Combine the bytes ``low`` … ``high − 1`` of all ranks, which follow one another."""
        launcher, n, bits = self.launcher(bucket, place), bucket.codec.n, self.config.bits
        rows = place.here(rows)
        nodes = place.array(tf.constant(tree_of(n).view(np.float32)), np.int32)
        reduced = place.memory(high - low, tf.uint8)
        with statistics.time("reduce"):
            for piece in shards.pieces(bucket.sizes, low // bits, high // bits):
                first, last = piece.low * bits, piece.high * bits
                launcher.reduce(
                    place.array(rows, np.uint8, first), high - low,
                    place.array(reduced, np.uint8, first, last - first),
                    prepared[piece.tensor][1], piece.elements, piece.start, nodes,
                )  # fmt: skip
        return reduced

    def cuda_decoded(
        self, bucket: Bucket, place: Cuda, prepared: Prepared, reduced: Any
    ) -> list[Any]:
        """Gradients from reduced codes."""
        run = self.launcher(bucket, place).decode_exponential
        parts = _parts(place, reduced, np.uint8, bucket.spans)
        return self.restore(run, bucket, place, prepared, parts)


def _header(bucket: Bucket, head: Any) -> np.ndarray:
    """On the host; the norms stay where they are."""
    return head[: bucket.start].numpy().view(np.int32)


def _seen(place: Cuda, gradient: Any) -> Any:
    return place.array(gradient, SEEN_AS[gradient.dtype][0])


def _parts(place: Cuda, tensor: Any, dtype: Any, spans: Sequence[slice]) -> list[Any]:
    """Parts of a tensor as kernels take them."""
    tensor = place.here(tensor)
    return [place.array(tensor, dtype, span.start, span.stop - span.start) for span in spans]


def _norms(bucket: Bucket, place: Cuda, head: Any, sums: Any) -> list[Any]:
    """The norms of every tensor, in the vector that carries them."""
    vector, dtype = (head, np.int32) if bucket.by_max else (sums, np.float64)
    return _parts(place, vector, dtype, bucket.norm_spans)
