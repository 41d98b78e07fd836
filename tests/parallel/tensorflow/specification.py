"""What the exchange must return, for tensors; and what the tests compare it with."""

import numpy as np
import tensorflow as tf

from horovod_gqsgd import reference
from horovod_gqsgd.config import Config


def gradient(rank: int, *shape: int, seed: int = 0, dtype=tf.float32) -> tf.Tensor:
    """The gradient of a rank, which every rank can compute."""
    draws = np.random.default_rng(1000 * seed + rank).standard_normal(shape)
    return tf.cast(tf.constant(draws, tf.float64), dtype)


def everyone(hvd, *shape, **options) -> list[tf.Tensor]:
    return [gradient(rank, *shape, **options) for rank in range(hvd.size())]


def flat(tensor: tf.Tensor) -> np.ndarray:
    """As the kernels see a tensor."""
    array = tensor.numpy().reshape(-1)
    return array.view(np.uint16) if tensor.dtype == tf.bfloat16 else array


def expected(
    gradients: list[tf.Tensor], config: Config, name: str, step: int = 0, factor: float = 1.0
) -> tf.Tensor:
    """Mean of the ranks' gradients times ``factor``, quantised as ``config`` says."""
    mean = reference.mean([flat(g) for g in gradients], config, name, step, factor)
    return tf.reshape(tf.cast(mean, gradients[0].dtype), gradients[0].shape)


def same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and np.array_equal(flat(one).view(np.uint8), flat(other).view(np.uint8))


def identical(hvd, tensor: tf.Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    mine = flat(tf.convert_to_tensor(tensor)).view(np.uint8)
    rows = hvd.allgather(tf.constant(mine[None]), name="identical").numpy()
    return bool((rows == mine).all())


def replicas_identical(hvd, variables) -> bool:
    """Whether all ranks hold the same variables."""
    flat = tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in variables], 0)
    return identical(hvd, flat)
