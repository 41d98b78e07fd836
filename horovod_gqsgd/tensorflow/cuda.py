"""Linear levels where the gradients are: on a GPU by CUDA kernels, else as `linear`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod_gqsgd import agreement
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.bucket import Bucket
from horovod_gqsgd.cuda_kernels.launch import Launcher
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow import device
from horovod_gqsgd.tensorflow.device import Cuda
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


class CudaLinear(Linear):
    """Every stage has a twin on tensors of a GPU, ``cuda_<stage>``, and chooses when it runs.

    Tensors are as `device_stage` carries them: int32 as float32.
    """

    def stage(self, function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]) -> Any:
        """A stage where its inputs are."""
        on_device = getattr(self, f"cuda_{function.__name__}")

        kinds = [each.dtype for each in inputs]

        def either(*given: Any) -> list[Any]:
            place = device.of([each for each in given if tf.is_tensor(each)])
            return on_device(place, *given) if place else on_host(function, given, kinds)

        return device_stage(either, inputs, dtypes)

    @on_worker
    def cuda_norm(self, place: Cuda, _size: Any, *gradients: Any) -> list[Any]:
        """Gradients to head and sums."""
        bucket = self.bucket([gradient.shape.num_elements() for gradient in gradients])
        head = place.memory(bucket.head_size, tf.float32)
        sums = place.memory(bucket.sums_size, tf.float64)
        n, launcher = bucket.codec.n, self.launcher(bucket, place)
        nbytes = sum(g.shape.num_elements() * g.dtype.size for g in gradients)
        statistics.begin(len(gradients), nbytes, n)
        statistics.allreduce("norm", 4 * bucket.head_size + 8 * bucket.sums_size, n)
        with statistics.time("norm"):
            launcher.write_header(place.array(head, np.int32), bucket.fingerprint, self.memory.step)
            for gradient, part in zip(gradients, _norms(bucket, place, head, sums), strict=True):
                launcher.local_norms(_seen(place, gradient), part)
            place.finish()
        return [head, sums]

    @on_worker
    def cuda_announce(self, _place: Cuda, head: Any, sums: Any, sizes: Any) -> list[Any]:
        """The sums, or descriptions in their place."""
        if agreement.read_header(_header(head))[0]:
            return [sums]
        return [tf.constant(self.descriptions(self.bucket(sizes), np.float64))]

    @on_worker
    def cuda_encode(self, place: Cuda, head: Any, sums: Any, *gradients: Any) -> list[Any]:
        """Gradients to words, or descriptions in their place."""
        bucket = self.bucket([gradient.shape.num_elements() for gradient in gradients])
        agreed, step = agreement.read_header(_header(head))
        if not agreed and bucket.by_max:
            return [carried(tf.constant(self.descriptions(bucket, np.int32)))]
        if not agreed:
            self.settle(bucket, _header(head), sums.numpy())
        self.memory.step = step + 1
        statistics.sends += 1
        launcher = self.launcher(bucket, place)
        words = place.memory(bucket.length, tf.float32)
        prepared = self.prepare(bucket, place, head, sums)
        with statistics.time("encode"):
            for gradient, (joined, keys), part in zip(
                gradients, prepared, _parts(place, words, np.int32, bucket.spans), strict=True
            ):
                launcher.encode_linear(_seen(place, gradient), joined, keys, part)
            place.finish()
        statistics.allreduce("word", 4 * bucket.length, bucket.codec.n)
        return [words]

    @on_worker
    def cuda_decode(self, place: Cuda, head: Any, sums: Any, sizes: Any, words: Any) -> list[Any]:
        """Summed words to gradients."""
        bucket = self.bucket(sizes)
        header = _header(head)
        if not agreement.read_header(header)[0]:
            self.settle(bucket, header, tf.bitcast(words, tf.int32).numpy())
        launcher, outputs = self.launcher(bucket, place), []
        prepared = self.prepare(bucket, place, head, sums)
        with statistics.time("decode"):
            for size, dtype, (joined, _keys), part in zip(
                bucket.sizes, self.dtypes, prepared,
                _parts(place, words, np.int32, bucket.spans), strict=True,
            ):  # fmt: skip
                seen, stored = SEEN_AS[dtype]
                output = place.memory(size, stored)
                launcher.decode_linear(part, joined, place.array(output, seen), bucket.factor)
                outputs.append(tf.bitcast(output, dtype))
            place.finish()
        return outputs

    def launcher(self, bucket: Bucket, place: Cuda) -> Launcher:
        """The kernels for this rank."""
        codec = bucket.codec
        return Launcher(self.config, codec.rank, codec.n, place.run, place.empty)

    def prepare(self, bucket: Bucket, place: Cuda, head: Any, sums: Any) -> list[tuple[Any, Any]]:
        """Norms and keys of every tensor."""
        launcher, start = self.launcher(bucket, place), place.array(head, np.int32)
        return [
            launcher.prepare(part, start, name, size)
            for part, name, size in zip(
                _norms(bucket, place, head, sums), bucket.names, bucket.sizes, strict=True
            )
        ]


def _header(head: Any) -> np.ndarray:
    """On the host; the norms stay where they are."""
    return head[:HEADER].numpy().view(np.int32)


def _seen(place: Cuda, gradient: Any) -> Any:
    return place.array(gradient, SEEN_AS[gradient.dtype][0])


def _parts(place: Cuda, tensor: Any, dtype: Any, spans: Sequence[slice]) -> list[Any]:
    return [place.array(tensor, dtype, span.start, span.stop - span.start) for span in spans]


def _norms(bucket: Bucket, place: Cuda, head: Any, sums: Any) -> list[Any]:
    """The norms of every tensor, in the vector that carries them."""
    vector, dtype = (head, np.int32) if bucket.by_max else (sums, np.float64)
    return _parts(place, vector, dtype, bucket.norm_spans)
