"""Tensors and kernels share memory, and steps use that of earlier ones."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from horovod_gqsgd.codecs.linear import LinearCodec
from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import GlobalQSGD, memory
from horovod_gqsgd.tensorflow.memory import store
from horovod_gqsgd.tensorflow.worker import on_worker
from tests.parallel.tensorflow.specification import everyone, expected, gradient, same


def pieces(name: str) -> dict[tuple[str, int], list[np.ndarray]]:
    """Memory that is kept for a name, by role and size."""
    found = store.kept.items()
    return {(p.role, p.nbytes): kept.owners for p, kept in found if p.name == name}


def address(tensor: tf.Tensor) -> int:
    """Where a tensor has its memory."""
    same_bits = tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
    return np.asarray(memoryview(same_bits)).ctypes.data


def let_go(hvd) -> None:
    """Return when nobody has views of the last step's memory any more.

    The worker may not have dropped its arguments yet. Horovod's thread has the tensors of an
    exchange for a moment after it has told the graph to go on: until it begins another one. And
    TensorFlow drops arrays that it had taken over only when it frees an eager tensor, or has
    called Python again.
    """
    on_worker(lambda: None)()
    hvd.allreduce(tf.ones(1), name="let go")


def test_results_that_the_user_keeps_stay(hvd, traced):
    """Memory is used again only when nobody has a tensor in it any more."""
    average = traced(lambda x: hvd.allreduce(x, name="kept", compression=GlobalQSGD))
    steps = [everyone(hvd, 3000, seed=step) for step in range(4)]
    kept = [average(everyones[hvd.rank()])[:2048] for everyones in steps]
    views = [average(everyones[hvd.rank()]) for everyones in steps]
    gc.collect()
    for step, everyones in enumerate(steps):
        assert same(kept[step], expected(everyones, Config(), "kept", step)[:2048])
        assert same(views[step], expected(everyones, Config(), "kept", step + 4))


def test_one_piece_of_memory_serves_all_steps(hvd, traced):
    average = traced(lambda x: hvd.allreduce(x, name="again", compression=GlobalQSGD))
    for step in range(8):
        average(gradient(hvd.rank(), 3000, seed=step))
        let_go(hvd)
    found = pieces("again")
    assert sorted(role for role, _ in found) == ["head", "output 0", "sums", "words"]
    assert all(len(owners) == 1 for owners in found.values())


def test_models_that_share_names_do_not_take_memory_from_one_another(hvd, traced):
    average = traced(lambda x: hvd.allreduce(x, name="shared", compression=GlobalQSGD))
    for _ in range(4):
        for size in (3000, 5000, 7000):
            average(gradient(hvd.rank(), size))
            let_go(hvd)
    found = pieces("shared")
    assert sorted(size for role, size in found if role == "output 0") == [12_000, 20_000, 28_000]
    assert all(len(owners) == 1 for owners in found.values())


def test_memory_of_models_that_are_trained_no_more_is_given_back(hvd, traced, monkeypatch):
    average = traced(lambda x: hvd.allreduce(x, name="old", compression=GlobalQSGD))
    average(gradient(hvd.rank(), 3000))
    let_go(hvd)
    owners = [weakref.ref(owner) for kept in pieces("old").values() for owner in kept]
    assert owners
    hvd.allreduce(tf.ones(2048), name="new", compression=GlobalQSGD)
    assert all(owner() is not None for owner in owners)
    monkeypatch.setattr(memory, "PATIENCE", 0.0)
    hvd.allreduce(tf.ones(2048), name="new", compression=GlobalQSGD)
    assert not pieces("old")
    assert all(owner() is None for owner in owners)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
def test_nothing_is_copied_on_the_way_in_or_out(hvd, traced, monkeypatch, dtype):
    encode, seen = LinearCodec.encode, []

    def watch(self, x, *rest):
        seen.append(x.ctypes.data)
        encode(self, x, *rest)

    monkeypatch.setattr(LinearCodec, "encode", watch)
    mine = gradient(hvd.rank(), 3000, dtype=dtype)
    result = traced(lambda x: hvd.allreduce(x, name="way", compression=GlobalQSGD))(mine)
    assert seen == [address(mine)]
    owners = pieces("way")["output 0", 3000 * dtype.size]
    assert any(0 <= address(result) - owner.ctypes.data <= 64 for owner in owners)
