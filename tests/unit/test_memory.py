"""Buffers stay for names that are in use, steps for all."""

import gc
import weakref

import pytest

from horovod_gqsgd.torch.memory import Memories


class Buffers:
    pass


def none_alive() -> weakref.WeakSet:
    return weakref.WeakSet()


def call(memories, name, alive):
    """One call: whether its bucket was there already."""
    memory = memories.recall(name)
    found, memory.message = memory.message, None
    bucket = found or Buffers()
    alive.add(bucket)
    memory.step += 1
    memory.keep(bucket)
    return found is not None


@pytest.mark.parametrize("tensors", [1, 5, 5000])
def test_regular_names_find_their_buckets(tensors):
    """From the third step on, also beside names that are used once."""
    memories, alive = Memories(), none_alive()
    for step in range(6):
        found = [call(memories, name, alive) for name in range(tensors)]
        assert all(found) if step > 1 else not any(found)
        call(memories, f"once.{step}", alive)
    assert len(alive) == tensors


@pytest.mark.parametrize("uses", [1, 2, 10])
def test_changing_names_leave_no_buckets(uses):
    memories, alive, most = Memories(), none_alive(), 0
    for step in range(1000):
        for _ in range(uses):
            call(memories, f"gradient.{step}", alive)
        gc.collect(0)
        most = max(most, len(alive))
    assert most <= 30
    assert memories.recall("gradient.0").step == uses


def test_names_of_an_epoch_go_with_it():
    memories, alive = Memories(), none_alive()
    for epoch in range(20):
        for _ in range(50):
            for tensor in range(30):
                call(memories, f"{epoch}.{tensor}", alive)
    gc.collect()
    assert len(alive) <= 2 * 30


def test_what_comes_back_regularly_is_kept():
    """A name used twice after every hundred steps, as in an evaluation."""
    memories, alive, found = Memories(), none_alive(), list[bool]()
    for step in range(1000):
        for tensor in range(10):
            call(memories, tensor, alive)
        if step % 100 == 0:
            found += [call(memories, "evaluation", alive) for _ in range(2)]
    assert found[-10:] == [True] * 10
