"""Where the plugin meets Horovod: the functions that ``horovod.tensorflow`` calls.

``hvd.allreduce`` and all that stands on it hand what `GlobalQSGD.compress` returned to
``_allreduce``, ``_grouped_allreduce`` or their reducescatter twins. Marked tensors are compressed
here; everything else goes on to Horovod's own functions.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.process_sets import _temp_process_set_object
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import Sum, _normalize_name, global_process_set
from tensorflow.python.ops import control_flow_util

from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import device
from horovod_gqsgd.tensorflow.compressor import Gradient
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.stage import choose
from horovod_gqsgd.transports import horovod_tensorflow as native
from horovod_gqsgd.transports.horovod_tensorflow import Call


def install() -> None:
    """Put the plugin's functions in front of Horovod's; once is enough."""
    hvd._allreduce = _allreduce
    hvd._grouped_allreduce = _grouped_allreduce
    hvd._reducescatter = _reducescatter
    hvd._grouped_reducescatter = _grouped_reducescatter


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Horovod's function of this name, for marked tensors too."""
    options = (op, prescale_factor, postscale_factor, ignore_name_scope)
    if not isinstance(tensor, Gradient):
        return mpi_ops._allreduce(tensor, name, *options, process_set)
    if name is None and not tf.executing_eagerly():
        name = f"HorovodAllreduce_{_normalize_name(tensor.tensor.name)}"
    return _dispatch([tensor], Call(name, *options, process_set.process_set_id))[0]


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """Horovod's function of this name, for marked tensors too."""
    options = (op, prescale_factor, postscale_factor, ignore_name_scope)
    if not any(isinstance(tensor, Gradient) for tensor in tensors):
        return mpi_ops._grouped_allreduce(tensors, name, *options, process_set)
    if name is None and not tf.executing_eagerly():
        ends = f"{_unmarked(tensors[0]).name}_{_unmarked(tensors[-1]).name}"
        name = _normalize_name(f"HorovodGroupedAllreduce_{ends}")
    return _dispatch(tensors, Call(name, *options, process_set.process_set_id, len(tensors)))


def _reducescatter(tensor: Any, *arguments: Any, **options: Any) -> Any:
    """Horovod's own, uncompressed."""
    return mpi_ops._reducescatter(_unmarked(tensor), *arguments, **options)


def _grouped_reducescatter(tensors: Sequence[Any], *arguments: Any, **options: Any) -> Any:
    """Horovod's own, uncompressed."""
    plain = [_unmarked(tensor) for tensor in tensors]
    return mpi_ops._grouped_reducescatter(plain, *arguments, **options)


def _unmarked(tensor: Any) -> Any:
    return tensor.tensor if isinstance(tensor, Gradient) else tensor


def _dispatch(tensors: Sequence[Any], call: Call) -> list[Any]:
    """Compress what is to be compressed, and send the rest as without us."""
    plain = [tf.convert_to_tensor(_unmarked(tensor)) for tensor in tensors]
    chosen = [i for i, tensor in enumerate(tensors) if call.compresses() and _large(tensor)]
    rest = [i for i in range(len(tensors)) if i not in chosen]
    results: dict[int, Any] = {}
    exchanges: list[Exchange] = []
    if chosen:
        _refuse_xla()
        config = tensors[chosen[0]].config
        exchanged = _exchange([plain[i] for i in chosen], config, call, exchanges)
        results |= zip(chosen, exchanged, strict=True)
    if rest:
        # last: what a rank sends in vain, as ranks that disagree would, keeps a graph from ending
        with tf.control_dependencies([*results.values()]):
            results |= zip(rest, call.uncompressed([plain[i] for i in rest]), strict=True)
        for exchange in exchanges:
            results = dict(zip(results, exchange.conclude([*results.values()]), strict=True))
    return [results[i] for i in range(len(tensors))]


def _large(tensor: Any) -> bool:
    """Whether a tensor is to be compressed, as far as its size is known."""
    if not isinstance(tensor, Gradient):
        return False
    size = tensor.tensor.shape.num_elements()
    return size is None or size >= max(tensor.config.min_size, 1)


def _refuse_xla() -> None:
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "GlobalQSGD quantises in Numba kernels, which XLA cannot compile: leave"
            " jit_compile=True out of the model.compile() or tf.function() around the exchange of "
            "gradients, or compile only the function that computes them"
        )


def _exchange(
    tensors: list[Any], config: Config, call: Call, exchanges: list[Exchange]
) -> list[Any]:
    """The exchange, whose gradient is the same exchange of the gradients.

    It is added to ``exchanges``, unless tensors turn out to be small.
    """

    @tf.custom_gradient
    def exchange(*tensors: Any) -> tuple[list[Any], Any]:
        def gradient(*gradients: Any) -> list[Any]:
            marked = [Gradient(gradient, config) for gradient in gradients]
            options = (call.op, call.prescale, call.postscale, call.ignore_name_scope)
            process_set = _temp_process_set_object(call.process_set)
            if call.members is None:
                return _allreduce(marked[0], None, *options, process_set)
            return _grouped_allreduce(marked, None, *options, process_set)

        compressed = partial(_compressed, tensors, config, call, exchanges)
        if call.members or tensors[0].shape.is_fully_defined():
            return compressed(), gradient
        large = tf.size(tensors[0]) >= max(config.min_size, 1)
        return choose(large, compressed, partial(call.uncompressed, tensors)), gradient

    return exchange(*tensors)


def _exchange_for(config: Config) -> type[Exchange]:
    """On GPUs by kernels; what has none there runs on the host."""
    if device.available() and config.codec.stays_on_device(config):
        from horovod_gqsgd.tensorflow.cuda import OnDevice

        return OnDevice
    return Exchange


def _compressed(
    tensors: Sequence[Any], config: Config, call: Call, exchanges: list[Exchange]
) -> list[Any]:
    """Through a scheme, and back in shape."""
    config.check_world(native.world(call.process_set)[1])
    counts = [tensor.shape.num_elements() for tensor in tensors]
    known = None not in counts
    sizes = np.array(counts) if known else tf.stack([tf.size(t, tf.int64) for t in tensors])
    exchange = _exchange_for(config)(config, call, [tensor.dtype for tensor in tensors])
    exchanges.append(exchange)
    results = [
        tf.reshape(result, tensor.shape if known else tf.shape(tensor))
        for tensor, result in zip(tensors, exchange.run(tensors, sizes), strict=True)
    ]
    if not tf.executing_eagerly():
        for tensor, result in zip(tensors, results, strict=True):
            result.set_shape(tensor.shape)
    return results
