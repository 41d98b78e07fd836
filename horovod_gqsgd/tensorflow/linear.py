"""Linear levels: words summed by Horovod's own allreduce."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import Sum

from horovod_gqsgd import agreement
from horovod_gqsgd.codec import LinearCodec
from horovod_gqsgd.statistics import statistics
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.stage import flat
from horovod_gqsgd.tensorflow.worker import on_worker


class Linear(Exchange):
    """Norms by one allreduce, words by another."""

    codec = LinearCodec

    def run(self, tensors: Sequence[Any], sizes: Any) -> list[Any]:
        """The graph; flat tensors come back."""
        head, sums = self.agree(tensors, sizes)
        [words] = self.stage(self.encode, [head, sums, *tensors], [tf.int32])
        words = self.call.later(mpi_ops._allreduce, self.place, words, op=Sum)
        return self.stage(self.decode, [head, sums, sizes, words], self.dtypes)

    @on_worker
    def encode(
        self, head: np.ndarray, sums: np.ndarray, *gradients: np.ndarray
    ) -> list[np.ndarray]:
        """Gradients to words, or descriptions in their place."""
        arrays = [flat(gradient) for gradient in gradients]
        bucket = self.bucket([array.size for array in arrays])
        if not bucket.by_max:
            self.settle(bucket, head, sums)
        elif not agreement.read_header(head)[0]:
            return [self.descriptions(bucket, np.int32)]
        agreed = self.begin(bucket, head, sums)
        words = self.buffer("words", bucket.length, np.int32)
        bucket.encode(arrays, agreed, words)
        statistics.allreduce("word", words.nbytes, bucket.codec.n)
        return [words]

    @on_worker
    def decode(
        self, head: np.ndarray, sums: np.ndarray, sizes: np.ndarray, words: np.ndarray
    ) -> list[np.ndarray]:
        """Summed words to gradients."""
        bucket = self.bucket(sizes)
        self.settle(bucket, head, words)
        outputs = self.outputs(bucket.sizes)
        bucket.decode(words, bucket.read(head, sums), [flat(output) for output in outputs])
        return outputs
