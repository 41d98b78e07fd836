"""A job started from Python by `horovod.run`, with a process set for either half of its ranks."""

import horovod
import pytest

from tests.parallel.job import ENVIRONMENT, ROOT

pytestmark = [pytest.mark.parallel, pytest.mark.extended]

HALVES = ([0, 1], [2, 3])


def train_in_halves() -> list[float]:
    """Each half trains a model of its own; returns this rank's parameters."""
    import horovod.torch as hvd
    import torch

    from horovod_gqsgd.config import Config
    from horovod_gqsgd.torch import GlobalQSGD
    from tests.parallel.torch.specification import expected, gradient

    sets = [hvd.ProcessSet(ranks) for ranks in HALVES]
    hvd.init(process_sets=sets)
    half = hvd.rank() // 2
    torch.manual_seed(half)
    model = torch.nn.Linear(64, 32)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=GlobalQSGD,
        process_set=sets[half],
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(gradient(hvd.rank(), 4 * 64).reshape(4, 64)).square().mean().backward()
        optimizer.step()

    everyones = [gradient(rank, 3000) for rank in HALVES[half]]
    mean = hvd.allreduce(
        gradient(hvd.rank(), 3000), name="both", compression=GlobalQSGD, process_set=sets[half]
    )
    assert torch.equal(mean, expected(everyones, Config(), "both"))
    hvd.barrier()  # the half that ends first would end the job
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_halves_of_a_job_that_python_started(monkeypatch):
    for name, value in {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    a, b, c, d = horovod.run(train_in_halves, num_proc=4, use_gloo=True)
    assert a == b
    assert c == d
    assert a != c
