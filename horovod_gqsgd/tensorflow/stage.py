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


def device_stage(
    function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]
) -> list[Any]:
    """Call ``function`` with eager tensors, wherever they are; arrays are handed on as they are.

    TensorFlow's node for that, and others, keep int32 off GPUs: they travel as float32 of the
    same bits, to the function and from it.
    """
    tensors = [carried(each) for each in inputs if tf.is_tensor(each)]

    def call(*given: Any) -> list[Any]:
        rest = iter(given)
        return function(*(next(rest) if tf.is_tensor(each) else each for each in inputs))

    if tf.executing_eagerly():
        results = call(*tensors)
    else:
        carriers = [tf.float32 if dtype == tf.int32 else dtype for dtype in dtypes]
        results = _node(call, tensors, carriers)
    outputs = [tf.bitcast(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]
    if not tf.executing_eagerly():
        for output in outputs:
            output.set_shape([None])
    return outputs


def on_host(function: Callable, inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Call a function of arrays with what `device_stage` carries of the types given."""
    arrays = [
        _array(tf.bitcast(each, dtype)) if tf.is_tensor(each) else each
        for each, dtype in zip(inputs, dtypes, strict=True)
    ]
    return [carried(_tensor(array)) for array in function(*arrays)]


def carried(tensor: Any) -> Any:
    """As `device_stage` carries a tensor."""
    return tf.bitcast(tensor, tf.float32) if tensor.dtype == tf.int32 else tensor


def _node(function: Callable, inputs: Sequence[Any], dtypes: Sequence[tf.DType]) -> list[Any]:
    """`tf.py_function`, which leaves tensors on their device, as a stateless node: see `stage`."""
    body = tf.function(lambda *given: tf.py_function(function, given, dtypes), autograph=False)
    traced = body.get_concrete_function(*[tf.TensorSpec(each.shape, each.dtype) for each in inputs])
    return tf.raw_ops.PartitionedCall(args=inputs, Tout=dtypes, f=traced)


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
