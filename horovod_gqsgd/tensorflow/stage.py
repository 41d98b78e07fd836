"""Stages: Python functions of NumPy arrays as nodes of a graph, without copies."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def stage(function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]) -> list[Any]:
    """Call ``function`` with the inputs as arrays; a flat tensor for each array it returns.

    Not `tf.py_function`: that is a stateful node, and TensorFlow runs those one after the other,
    in the order in which they were traced.
    """
    if tf.executing_eagerly():
        return [_tensor(array) for array in function(*map(_array, inputs))]
    with tf.device("CPU:0"):
        outputs = tf.numpy_function(function, inputs, dtypes, stateful=False)
    for output in outputs:
        output.set_shape([None])
    return outputs


def choose(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One or the other: now, if the condition is known, else when the graph runs."""
    if tf.is_tensor(condition) and not tf.executing_eagerly():
        return tf.cond(condition, yes, no)
    return yes() if condition else no()


def flat(array: np.ndarray) -> np.ndarray:
    """As the kernels see an array; bfloat16 as the uint16 of its bits."""
    line = array.reshape(-1)
    return line.view(np.uint16) if line.dtype == tf.bfloat16.as_numpy_dtype else line


class _Memory:
    """The memory of an eager tensor as a writable array, which TensorFlow does not offer.

    Nobody writes to it, but Numba would compile its kernels again for the other kind.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor  # lives as long as the array
        interface = np.asarray(memoryview(tensor)).__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _array(tensor: Any) -> np.ndarray:
    with tf.device("CPU:0"):
        host = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tf.identity(tensor)
    return np.asarray(_Memory(host))


def _tensor(array: np.ndarray) -> Any:
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return tf.bitcast(_tensor(array.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
