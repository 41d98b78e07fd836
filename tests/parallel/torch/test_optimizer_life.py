"""Optimizers in the course of a training: bad steps, changes, state, ranks that leave or differ."""

import contextlib
import copy
import pickle
import time

import pytest
import torch

from horovod_gqsgd.torch import DisagreementError, GlobalQSGD, statistics
from tests.parallel.torch.training import (
    Model,
    close_to_mean,
    distributed,
    loss,
    replicas_identical,
    train_with_a_pause,
    true_gradients,
)


def test_gradient_scaler_skips_a_bad_step_and_goes_on(hvd, compression):
    """An overflow on one rank is a NaN on every rank, so that all of them skip the step."""
    model = Model()
    optimizer = distributed(hvd, model, compression=compression)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        before = model.left.weight.detach().clone()
        optimizer.zero_grad()
        overflow = float("inf") if step == 1 and hvd.rank() == 0 else 1.0
        scaler.scale(loss(model, hvd.rank(), step) * overflow).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model.left.weight) == (step == 1)
    assert scaler.get_scale() == 4.0
    assert replicas_identical(hvd, model)


def test_change_of_compressor_in_training(hvd):
    model = Model()
    optimizer = distributed(hvd, model)
    for compression in [GlobalQSGD, hvd.Compression.none, GlobalQSGD(bits=16), GlobalQSGD]:
        optimizer._compression = compression
        optimizer.zero_grad()
        loss(model, hvd.rank()).backward()
        optimizer.step()
        assert replicas_identical(hvd, model)


def test_several_optimizers_at_once(hvd):
    """Each with a compressor of its own."""
    models = [Model(), Model(), Model()]
    compressions = [GlobalQSGD, GlobalQSGD(bits=10), GlobalQSGD(levels="exponential")]
    truth = true_gradients(models[0], hvd.size())
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=compression,
            named_parameters=[(f"several.{i}.{n}", p) for n, p in model.named_parameters()],
        )
        for i, (model, compression) in enumerate(zip(models, compressions, strict=True))
    ]  # fmt: skip
    sum(loss(model, hvd.rank()) for model in models).backward()
    for optimizer, model, compression in zip(optimizers, models, compressions, strict=True):
        optimizer.step()
        close_to_mean(model, truth, compression=compression)
        assert replicas_identical(hvd, model)


def assert_same_state(one, other):
    """Whether two state dicts of optimizers are the same, numbers and all."""
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for key, state in one["state"].items():
        assert state.keys() == other["state"][key].keys()
        for name, value in state.items():
            torch.testing.assert_close(value, other["state"][key][name], rtol=0, atol=0)


def test_state_round_trip(hvd):
    """Saved, loaded into another optimizer and stepped: as if nothing had happened."""
    models = [Model(), Model()]
    optimizers = [distributed(hvd, models[0], lr=0.03), distributed(hvd, models[1], lr=0.5)]
    loss(models[0], hvd.rank()).backward()
    optimizers[0].step()
    saved = pickle.dumps((models[0].state_dict(), optimizers[0].state_dict()))
    weights, state = pickle.loads(saved)
    models[1].load_state_dict(weights)
    optimizers[1].load_state_dict(state)
    assert_same_state(optimizers[0].state_dict(), optimizers[1].state_dict())
    assert optimizers[1].param_groups[0]["lr"] == 0.03

    optimizers[0].zero_grad()
    loss(models[0], hvd.rank(), 1).backward()
    optimizers[0].synchronize()
    pairs = [*zip(*(model.parameters() for model in models), strict=True)]
    for ours, loaded in pairs:
        loaded.grad = ours.grad.clone()
    for optimizer in optimizers:
        with optimizer.skip_synchronize():
            optimizer.step()
    assert all(torch.equal(*pair) for pair in pairs)
    assert_same_state(optimizers[0].state_dict(), optimizers[1].state_dict())


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_broadcast_state(hvd, kind):
    """Ranks that differ in weights, state and rates have the root's afterwards, and go on."""
    model = Model()
    momentum = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    plain = getattr(torch.optim, kind)(model.parameters(), lr=1e-3 * (1 + hvd.rank()), **momentum)
    for step in range(1 + hvd.rank()):
        plain.zero_grad()
        loss(model, hvd.rank(), step).backward()
        plain.step()
    optimizer = hvd.DistributedOptimizer(
        plain, named_parameters=model.named_parameters(), compression=GlobalQSGD
    )
    optimizer.load_state_dict(plain.state_dict())
    mine = copy.deepcopy(optimizer.state_dict())
    roots = hvd.broadcast_object(mine, root_rank=0)
    if hvd.rank():
        with pytest.raises(AssertionError):
            assert_same_state(mine, roots)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_same_state(optimizer.state_dict(), roots)
    assert replicas_identical(hvd, model)
    optimizer.zero_grad()
    loss(model, hvd.rank()).backward()
    optimizer.step()
    assert replicas_identical(hvd, model)


def test_uneven_data_with_join(hvd):
    model = Model()
    optimizer = distributed(hvd, model)
    for step in range(1 + hvd.rank()):
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    assert replicas_identical(hvd, model)


def test_disagreement_reaches_the_user_of_an_optimizer(hvd):
    model = Model()
    optimizer = distributed(hvd, model, compression=GlobalQSGD(bits=8 if hvd.rank() else 10))
    loss(model, hvd.rank()).backward()
    with pytest.raises(DisagreementError, match=r"bits is 10 on rank 0; 8 on rank"):
        optimizer.step()
    # What was under way is still under way: see it to its end before the next test.
    for handle, _ctx in optimizer._handles.values():
        with contextlib.suppress(DisagreementError):
            hvd.synchronize(handle)


def test_words_leave_during_the_backward_pass(hvd):
    train_with_a_pause(hvd, distributed, sends=1)
    assert 3.8 < statistics.ratio < 4.0


def test_words_that_leave_while_somebody_waits_for_a_small_tensor_are_late(hvd):
    """The others begin later: norms arrive, and words leave, while the first rank waits."""
    large, _ctx = GlobalQSGD.compress(torch.ones(3000))
    small, _ctx = GlobalQSGD.compress(torch.ones(3))
    hvd.allreduce(torch.ones(1), name="late.together")
    statistics.reset()
    time.sleep(0.3 * (hvd.rank() > 0))
    first = hvd.allreduce_async_(large, name="late.large")
    if hvd.rank() > 0:
        hvd.synchronize(first)
    hvd.synchronize(hvd.allreduce_async_(small, name="late.small"))
    if hvd.rank() == 0:
        assert (statistics.sends, statistics.late_sends) == (1, 1)
        assert statistics.wait_seconds > 0.1
        hvd.synchronize(first)
