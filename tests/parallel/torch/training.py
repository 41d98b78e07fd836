"""A small model whose true gradients are known, for tests of optimizers."""

import time

import torch
from torch import nn

from horovod_gqsgd.torch import GlobalQSGD, statistics
from tests.parallel.torch.specification import gradient


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


def true_gradients(model, n, step=0, passes=1, branch=lambda rank: "both"):
    """Every rank's gradient of every parameter, computed here; optimizers do not notice."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    rows = [
        torch.autograd.grad(
            sum(loss(model, rank, step + i, branch(rank)) for i in range(passes)),
            parameters, materialize_grads=True,
        )
        for rank in range(n)
    ]  # fmt: skip
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def replicas_identical(hvd, model):
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return all(torch.equal(row, flat) for row in hvd.allgather(flat[None]))


def close_to_mean(model, truth, factor=1.0, compression=GlobalQSGD):
    """Gradients within one quantisation step of the true mean.

    Exponential levels promise a small relative variance, 0.0075 for a worker's number and for the
    mean: then the error as a whole is small.
    """
    parameters = dict(model.named_parameters())
    for name, gradients in truth.items():
        everyones = factor * torch.stack(gradients)
        error = parameters[name].grad - everyones.mean(0)
        if compression is GlobalQSGD or compression.config.levels == "linear":
            assert error.abs().max() <= everyones.abs().max() / 20, name
        else:
            assert error.norm() <= 0.2 * everyones.square().mean(0).sum().sqrt(), name


def train_with_a_pause(hvd, distributed, sends):
    """Two steps of 20 layers, ``sends`` each; half way back, until what 8 layers send has left.

    Norms of the last layers arrive while the first are still to be computed: nobody waits for them.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(20)))
    goal = 0

    def pause(*_):
        deadline = time.monotonic() + 20
        while statistics.sends < goal and time.monotonic() < deadline:
            time.sleep(0.01)

    model[9].register_full_backward_hook(pause)
    optimizer = distributed(hvd, model)
    statistics.reset()
    for step in range(2):
        goal = (20 * step + 8) * sends
        optimizer.zero_grad()
        model(torch.randn(4, 128)).square().mean().backward()
        optimizer.step()
    assert statistics.sends == 2 * 20 * sends
    assert statistics.late_sends <= 2 * 12 * sends
