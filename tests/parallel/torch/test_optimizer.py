"""``hvd.DistributedOptimizer(compression=GlobalQSGD)`` in the ways users call it."""

import copy

import pytest
import torch
from torch import nn

from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import GlobalQSGD, statistics
from tests.parallel.torch.specification import expected, gradient
from tests.parallel.torch.training import (
    Model,
    batch,
    close_to_mean,
    distributed,
    loss,
    replicas_identical,
    true_gradients,
)


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
def test_operations(hvd, options, compression):
    model = Model()
    truth = true_gradients(model, hvd.size())
    factor = hvd.size() if options.get("op") == "Sum" else 1
    options = {k: getattr(hvd, v) if k == "op" else v for k, v in options.items()}
    optimizer = distributed(hvd, model, compression=compression, **options)
    loss(model, hvd.rank()).backward()
    optimizer.synchronize()
    close_to_mean(model, truth, factor, compression)


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


@pytest.mark.np(2)
def test_adasum(hvd, compression):
    """Horovod's other optimizer, which sends changes of parameters: uncompressed, as without us."""
    if not hvd.mpi_enabled():
        pytest.skip("Horovod has Adasum with MPI or NCCL, not with Gloo")
    models, before = [Model(), Model()], statistics.tensors
    for model, each in zip(models, (compression, hvd.Compression.none), strict=True):
        optimizer = distributed(hvd, model, op=hvd.Adasum, compression=each)
        for step in range(2):
            optimizer.zero_grad()
            loss(model, hvd.rank(), step).backward()
            optimizer.step()
    assert statistics.tensors == before
    for ours, plain in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, plain)


def test_backward_passes_per_step(hvd, compression):
    model = Model()
    truth = true_gradients(model, hvd.size(), passes=2)
    optimizer = distributed(hvd, model, backward_passes_per_step=2, compression=compression)
    loss(model, hvd.rank(), 0).backward()
    loss(model, hvd.rank(), 1).backward()
    optimizer.synchronize()
    close_to_mean(model, truth, compression=compression)


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


def test_unused_parameters(hvd, compression):
    """Ranks that use different branches; unused parameters are sent in synchronize, as zeros."""
    model = Model()
    optimizer = distributed(hvd, model, compression=compression)

    def branch(rank):
        return ["left", "right", "both"][(rank + step) % 3]

    for step in range(4):
        truth = true_gradients(model, hvd.size(), step, branch=branch)
        optimizer.zero_grad()
        loss(model, hvd.rank(), step, branch(hvd.rank())).backward()
        optimizer.step()
        close_to_mean(model, truth, compression=compression)
    assert replicas_identical(hvd, model)


def test_hooks_in_different_order(hvd, compression):
    """Backward in two parts whose order depends on the rank."""
    model = Model()
    optimizer = distributed(hvd, model, compression=compression)
    sides = {"left": model.left, "right": model.right}

    def part(side, rank):
        return sides[side](model.first(batch(rank, step)).relu()).square().mean()

    for step in range(3):
        truth = {}
        for side, layer in sides.items():
            names = [f"{side}.{name}" for name, _ in layer.named_parameters()]
            rows = [
                torch.autograd.grad(part(side, rank), [*layer.parameters()])
                for rank in range(hvd.size())
            ]
            truth |= dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        optimizer.zero_grad()
        order = ["left", "right"] if (hvd.rank() + step) % 2 else ["right", "left"]
        for side in order:
            part(side, hvd.rank()).backward(inputs=[*sides[side].parameters()])
        unnamed = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
        assert unnamed.item() == hvd.size() * (hvd.size() - 1) / 2
        optimizer.step()
        close_to_mean(model, truth, compression=compression)
    assert replicas_identical(hvd, model)


def test_dynamic_requires_grad(hvd):
    """Two players of which one is frozen in turn, as in adversarial training."""
    torch.manual_seed(0)
    players = [nn.Linear(40, 40), nn.Linear(40, 40)]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(m.parameters(), lr=0.01), compression=GlobalQSGD,
            named_parameters=[(f"player{i}.{n}", p) for n, p in m.named_parameters()],
        )
        for i, m in enumerate(players)
    ]  # fmt: skip

    def objective(rank):
        return players[1](players[0](gradient(rank, 2, 40, seed=turn))).square().mean()

    for turn in range(4):
        active, frozen = players[turn % 2], players[1 - turn % 2]
        frozen.requires_grad_(False)
        active.requires_grad_(True)
        before = copy.deepcopy([player.state_dict() for player in (active, frozen)])
        names = [name for name, _ in active.named_parameters()]
        rows = [torch.autograd.grad(objective(rank), [*active.parameters()])
                for rank in range(hvd.size())]  # fmt: skip
        truth = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        optimizers[turn % 2].zero_grad()
        objective(hvd.rank()).backward()
        optimizers[turn % 2].step()
        close_to_mean(active, truth)
        assert not torch.equal(active.weight, before[0]["weight"])
        assert torch.equal(frozen.weight, before[1]["weight"])
        assert all(replicas_identical(hvd, player) for player in players)


def test_force_allreduce_of_gradients_that_some_ranks_lack(hvd):
    """One rank alone has computed a gradient; the others send zeros for it."""
    model = Model()
    truth = true_gradients(model, 1)
    optimizer = distributed(hvd, model)
    if hvd.rank() == 0:
        loss(model, 0).backward()
    optimizer.step()
    zeros = hvd.size() - 1
    close_to_mean(model, {name: rows + [0 * rows[0]] * zeros for name, rows in truth.items()})
    assert replicas_identical(hvd, model)


def test_no_named_parameters(hvd):
    model = Model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, compression=GlobalQSGD)
    loss(model, hvd.rank()).backward()
    optimizer.step()
    assert replicas_identical(hvd, model)


@pytest.mark.np(3)
def test_process_sets(hvd, compression):
    pair = hvd.add_process_set([0, 2])
    try:
        model = Model()
        truth = true_gradients(model, hvd.size())
        members = {name: [rows[0], rows[2]] for name, rows in truth.items()}
        optimizer = distributed(hvd, model, process_set=pair, compression=compression)
        loss(model, hvd.rank()).backward()
        own = model.left.weight.grad.clone()
        optimizer.step()
        if hvd.rank() == 1:
            assert torch.equal(model.left.weight.grad, own)
        else:
            close_to_mean(model, members, compression=compression)
        flat = model.left.weight.detach().flatten()
        rows = hvd.allgather(flat[None])
        assert torch.equal(rows[0], rows[2])
        assert not torch.equal(rows[0], rows[1])
    finally:
        hvd.remove_process_set(pair)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_embeddings(hvd, as_dense, compression):
    torch.manual_seed(0)
    embedding = nn.Embedding(50, 40, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0), compression=compression,
        named_parameters=[(f"embedding.{as_dense}", embedding.weight)], sparse_as_dense=as_dense,
    )  # fmt: skip
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([hvd.rank(), 40])).sum().backward()
    optimizer.step()
    moved = before - embedding.weight.detach()
    assert torch.allclose(moved[40], torch.ones(40), atol=1e-6)
    close = 0.02 if compression is GlobalQSGD else 0.2 / hvd.size()  # or the gap between levels
    wanted = torch.full((hvd.size(), 40), 1 / hvd.size())
    assert torch.allclose(moved[: hvd.size()], wanted, atol=close)
    assert abs(moved[: hvd.size()].mean() - 1 / hvd.size()) < 0.03
    assert replicas_identical(hvd, embedding)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(hvd, dtype, compression):
    """bfloat16 too, which Horovod itself refuses."""
    model = Model().to(dtype)
    optimizer = distributed(hvd, model, lr=0.01, compression=compression)
    for step in range(3):
        truth = {}
        for rank in range(hvd.size()):
            own = copy.deepcopy(model)
            own.zero_grad()
            own(batch(rank, step).to(dtype)).float().square().mean().backward()
            for name, p in own.named_parameters():
                truth.setdefault(name, []).append(p.grad.float())
        optimizer.zero_grad()
        model(batch(hvd.rank(), step).to(dtype)).float().square().mean().backward()
        optimizer.step()
        assert all(p.grad.dtype == dtype for p in model.parameters())
        close_to_mean(model, truth, compression=compression)
    assert replicas_identical(hvd, model.float())


def test_channels_last(hvd, compression):
    torch.manual_seed(0)
    model = nn.Conv2d(8, 24, 3).to(memory_format=torch.channels_last)
    truth = {"weight": [], "bias": []}

    def backward(rank):
        images = gradient(rank, 2, 8, 9, 9).to(memory_format=torch.channels_last)
        model(images).square().mean().backward()
        assert not model.weight.grad.is_contiguous()

    for rank in range(hvd.size()):
        backward(rank)
        for name, p in model.named_parameters():
            truth[name].append(p.grad.clone())
        model.zero_grad()
    optimizer = distributed(hvd, model, compression=compression)
    backward(hvd.rank())
    optimizer.step()
    close_to_mean(model, truth, compression=compression)
    assert replicas_identical(hvd, model)
