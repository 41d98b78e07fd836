"""``hvd.DistributedOptimizer(compression=GlobalQSGD)`` in the ways users call it."""

import contextlib
import time

import pytest
import torch
from torch import nn

from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import DisagreementError, GlobalQSGD, statistics
from tests.parallel.torch.specification import expected, gradient


class Model(nn.Module):
    """Three layers of which ranks may use different ones, in different order."""

    def __init__(self, wide=64):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, wide)
        self.left = nn.Linear(wide, wide)
        self.right = nn.Linear(wide, wide)
        self.last = nn.Linear(wide, 32)

    def forward(self, x, branch="both"):
        x = self.first(x).relu()
        branches = ["left", "right"] if branch == "both" else [branch]
        return self.last(sum(getattr(self, name)(x) for name in branches))


def batch(rank, step=0):
    return gradient(rank, 8, 32, seed=step)


def loss(model, rank, step=0, branch="both"):
    return model(batch(rank, step), branch).square().mean()


def distributed(hvd, model, lr=0.1, **options):
    options.setdefault("compression", GlobalQSGD)
    plain = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    named = model.named_parameters()
    return hvd.DistributedOptimizer(plain, named_parameters=named, **options)


def true_gradients(model, n, step=0, passes=1):
    """Every rank's gradient of every parameter, computed here."""
    result = {}
    for rank in range(n):
        model.zero_grad()
        for i in range(passes):
            loss(model, rank, step + i).backward()
        for name, p in model.named_parameters():
            result.setdefault(name, []).append(p.grad.clone())
    model.zero_grad()
    return result


def replicas_identical(hvd, model):
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return all(torch.equal(row, flat) for row in hvd.allgather(flat[None]))


def close_to_mean(model, truth, factor=1.0):
    """Gradients within one quantisation step of the true mean."""
    for name, p in model.named_parameters():
        mean = torch.stack(truth[name]).mean(0) * factor
        top = max(g.abs().max() for g in truth[name]) * factor
        assert (p.grad - mean).abs().max() <= top / 20, name


def test_defaults_give_the_specified_gradients(hvd):
    """Class and instance; every parameter under its own name."""
    for compression in (GlobalQSGD, GlobalQSGD(bits=6)):
        model = Model()
        truth = true_gradients(model, hvd.size())
        optimizer = distributed(hvd, model, compression=compression)
        loss(model, hvd.rank()).backward()
        optimizer.synchronize()
        config = Config() if compression is GlobalQSGD else Config(bits=6)
        step = 0 if compression is GlobalQSGD else 1  # the counter belongs to the name
        for name, p in model.named_parameters():
            if p.numel() >= 1024:
                assert torch.equal(p.grad, expected(truth[name], config, name, step)), name
            else:
                torch.testing.assert_close(p.grad, torch.stack(truth[name]).mean(0))
        with optimizer.skip_synchronize():
            optimizer.step()
        assert replicas_identical(hvd, model)


def test_training_keeps_replicas_identical_and_learns(hvd):
    model = Model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = distributed(hvd, model)
    before = loss(model, 0).item()
    for step in range(20):
        optimizer.zero_grad()
        loss(model, hvd.rank(), step % 3).backward()
        optimizer.step()
    assert replicas_identical(hvd, model)
    assert loss(model, 0).item() < 0.5 * before


@pytest.mark.parametrize("options", [{"op": "Sum"}, {"gradient_predivide_factor": 4.0}], ids=str)
def test_operations(hvd, options):
    model = Model()
    truth = true_gradients(model, hvd.size())
    factor = hvd.size() if options.get("op") == "Sum" else 1
    options = {k: getattr(hvd, v) if k == "op" else v for k, v in options.items()}
    optimizer = distributed(hvd, model, **options)
    loss(model, hvd.rank()).backward()
    optimizer.synchronize()
    close_to_mean(model, truth, factor)


@pytest.mark.parametrize("groups", [1, 2, 3, "lists"])
def test_groups(hvd, groups):
    model = Model()
    truth = true_gradients(model, hvd.size())
    if groups == "lists":
        groups = [[*model.first.parameters()], [model.left.weight, model.last.weight]]
    optimizer = distributed(hvd, model, groups=groups)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model, hvd.rank()).backward()
        optimizer.synchronize()
        close_to_mean(model, truth)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert replicas_identical(hvd, model)


def test_backward_passes_per_step(hvd):
    model = Model()
    truth = true_gradients(model, hvd.size(), passes=2)
    optimizer = distributed(hvd, model, backward_passes_per_step=2)
    loss(model, hvd.rank(), 0).backward()
    loss(model, hvd.rank(), 1).backward()
    optimizer.synchronize()
    close_to_mean(model, truth)


def test_gradient_clipping(hvd):
    model = Model()
    optimizer = distributed(hvd, model)
    loss(model, hvd.rank()).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    assert nn.utils.get_total_norm([p.grad for p in model.parameters()]) <= 0.0101
    with optimizer.skip_synchronize():
        optimizer.step()
    assert replicas_identical(hvd, model)


def test_synchronize_without_skipping_warns_as_stock_does(hvd):
    model = Model()
    optimizer = distributed(hvd, model)
    loss(model, hvd.rank()).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def test_unused_parameters(hvd):
    """Ranks that use different branches; unused parameters are sent in synchronize."""
    model = Model()
    optimizer = distributed(hvd, model)
    for step in range(4):
        optimizer.zero_grad()
        branch = ["left", "right", "both"][(hvd.rank() + step) % 3]
        loss(model, hvd.rank(), step, branch).backward()
        optimizer.step()
    assert replicas_identical(hvd, model)
    assert model.left.weight.grad.abs().sum() > 0


def test_hooks_in_different_order(hvd):
    """Backward in two parts whose order depends on the rank."""
    model = Model()
    optimizer = distributed(hvd, model)
    for step in range(3):
        optimizer.zero_grad()
        hidden = model.first(batch(hvd.rank(), step)).relu()
        one, two = model.left(hidden).square().mean(), model.right(hidden).square().mean()
        parts = [one, two] if (hvd.rank() + step) % 2 else [two, one]
        inputs = [[*model.left.parameters()], [*model.right.parameters()]]
        if (hvd.rank() + step) % 2 == 0:
            inputs.reverse()
        for part, parameters in zip(parts, inputs, strict=True):
            part.backward(inputs=parameters, retain_graph=True)
        unnamed = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
        assert unnamed.item() == hvd.size() * (hvd.size() - 1) / 2
        optimizer.step()
    assert replicas_identical(hvd, model)


def test_dynamic_requires_grad(hvd):
    """Two players of which one is frozen in turn, as in adversarial training."""
    first, second = nn.Linear(40, 40), nn.Linear(40, 40)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(m.parameters(), lr=0.1), compression=GlobalQSGD,
            named_parameters=[(f"player{i}.{n}", p) for n, p in m.named_parameters()],
        )
        for i, m in enumerate((first, second))
    ]  # fmt: skip
    for turn in range(4):
        active, frozen = (first, second) if turn % 2 else (second, first)
        frozen.requires_grad_(False)
        active.requires_grad_(True)
        optimizers[1 - turn % 2].zero_grad()
        second(first(torch.full((2, 40), float(hvd.rank())))).square().sum().backward()
        optimizers[1 - turn % 2].step()
    assert replicas_identical(hvd, first)


def test_force_allreduce_of_gradients_that_some_ranks_lack(hvd):
    """One rank alone has computed a gradient; the others send zeros for it."""
    model = Model()
    optimizer = distributed(hvd, model)
    if hvd.rank() == 0:
        loss(model, 0).backward()
    optimizer.step()
    assert replicas_identical(hvd, model)
    assert model.left.weight.grad.abs().sum() > 0


def test_no_named_parameters(hvd):
    model = Model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, compression=GlobalQSGD)
    loss(model, hvd.rank()).backward()
    optimizer.step()
    assert replicas_identical(hvd, model)


@pytest.mark.np(3)
def test_process_sets(hvd):
    pair = hvd.add_process_set([0, 2])
    try:
        model = Model()
        optimizer = distributed(hvd, model, process_set=pair)
        loss(model, hvd.rank()).backward()
        own = model.left.weight.grad.clone()
        optimizer.step()
        if hvd.rank() == 1:
            assert torch.equal(model.left.weight.grad, own)
        flat = model.left.weight.detach().flatten()
        rows = hvd.allgather(flat[None])
        assert torch.equal(rows[0], rows[2])
        assert not torch.equal(rows[0], rows[1])
    finally:
        hvd.remove_process_set(pair)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_embeddings(hvd, as_dense):
    torch.manual_seed(0)
    embedding = nn.Embedding(50, 40, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0), compression=GlobalQSGD,
        named_parameters=[(f"embedding.{as_dense}", embedding.weight)], sparse_as_dense=as_dense,
    )  # fmt: skip
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([hvd.rank(), 40])).sum().backward()
    optimizer.step()
    moved = before - embedding.weight.detach()
    assert torch.allclose(moved[40], torch.ones(40), atol=1e-6)
    assert torch.allclose(
        moved[: hvd.size()], torch.full((hvd.size(), 40), 1 / hvd.size()), atol=0.02
    )
    assert replicas_identical(hvd, embedding)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(hvd, dtype):
    """bfloat16 too, which Horovod itself refuses."""
    model = Model().to(dtype)
    optimizer = distributed(hvd, model, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(hvd.rank(), step).to(dtype)).float().square().mean().backward()
        optimizer.step()
        assert all(p.grad.dtype == dtype for p in model.parameters())
    assert replicas_identical(hvd, model.float())


def test_channels_last(hvd):
    torch.manual_seed(0)
    model = nn.Conv2d(8, 24, 3).to(memory_format=torch.channels_last)
    optimizer = distributed(hvd, model)
    model(torch.ones(2, 8, 9, 9).to(memory_format=torch.channels_last)).square().sum().backward()
    assert not model.weight.grad.is_contiguous()
    optimizer.step()
    assert replicas_identical(hvd, model)


def test_gradient_scaler_skips_a_bad_step_and_goes_on(hvd):
    """An overflow on one rank is a NaN on every rank, so that all of them skip the step."""
    model = Model()
    optimizer = distributed(hvd, model)
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
    models = [Model(), Model()]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=GlobalQSGD(bits=bits),
            named_parameters=[(f"{bits}.{n}", p) for n, p in model.named_parameters()],
        )
        for model, bits in zip(models, (8, 10), strict=True)
    ]  # fmt: skip
    (loss(models[0], hvd.rank()) + loss(models[1], hvd.rank())).backward()
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.step()
        assert replicas_identical(hvd, model)


def test_state_round_trip(hvd):
    model = Model()
    optimizer = distributed(hvd, model)
    loss(model, hvd.rank()).backward()
    optimizer.step()
    state = optimizer.state_dict()
    other = distributed(hvd, Model())
    other.load_state_dict(state)
    for a, b in zip(state["state"].values(), other.state_dict()["state"].values(), strict=True):
        assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])
    hvd.broadcast_optimizer_state(other, root_rank=0)


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
    """Norms of the last layers arrive while the first are being computed: here, in a pause."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(20)))
    model[9].register_full_backward_hook(lambda *_: time.sleep(0.3))
    optimizer = distributed(hvd, model)
    statistics.reset()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 128)).square().mean().backward()
        optimizer.step()
    assert statistics.sends == 2 * 20
    assert statistics.late_sends < statistics.sends
    assert 3.8 < statistics.ratio < 4.0


def test_words_that_leave_while_somebody_waits_for_a_small_tensor_are_late(hvd):
    """The others begin later: norms arrive, and words leave, while the first rank waits."""
    large, _ctx = GlobalQSGD.compress(torch.ones(3000))
    small, _ctx = GlobalQSGD.compress(torch.ones(3))
    hvd.allreduce(torch.ones(1), name="late.together")
    statistics.reset()
    time.sleep(0.3 * (hvd.rank() > 0))
    first = hvd.allreduce_async_(large, name="late.large")
    time.sleep(0.2 * (hvd.rank() > 0))
    hvd.synchronize(hvd.allreduce_async_(small, name="late.small"))
    if hvd.rank() == 0:
        assert (statistics.sends, statistics.late_sends) == (1, 1)
        assert statistics.wait_seconds > 0.3
    hvd.synchronize(first)
