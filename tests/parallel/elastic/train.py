"""An elastic job that grows, then loses a worker; every average is held to the specification.

Run by `test_elastic` under ``horovodrun --host-discovery-script``. Workers write a line for every
batch; the batch number alone decides what happens, so that all runs are alike.
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import GlobalQSGD
from tests.parallel.torch.specification import expected, gradient

HOSTS, LOG = Path(sys.argv[1]), Path(sys.argv[2])
GROW, LOSE, END = 4, 8, 12

hvd.init()
model = torch.nn.Linear(40, 40)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=GlobalQSGD,
)
exchanged: list[str] = []  # since the world last changed


def check_average() -> None:
    """The counter of exchanges restarts with every change of the world."""
    name, step = "elastic.check", len(exchanged)
    exchanged.append(name)
    everyones = [gradient(rank, 3000) for rank in range(hvd.size())]
    result = hvd.allreduce(everyones[hvd.rank()], name=name, compression=GlobalQSGD)
    assert torch.equal(result, expected(everyones, Config(), name, step)), (hvd.size(), step)


@hvd.elastic.run
def train(state):
    while state.batch < END:
        size = hvd.size()
        if state.batch == GROW and size == 2:
            HOSTS.write_text("localhost:2\n127.0.0.1:1\n")
            while True:  # until Horovod tells that the hosts have changed
                time.sleep(0.2)
                state.check_host_updates()
        if state.batch == LOSE and size == 3 and os.environ["HOROVOD_HOSTNAME"] == "127.0.0.1":
            os.kill(os.getpid(), signal.SIGKILL)
        check_average()
        optimizer.zero_grad()
        model(torch.full((4, 40), float(hvd.rank()))).square().mean().backward()
        optimizer.step()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert all(torch.equal(row, flat) for row in hvd.allgather(flat[None]))
        if hvd.rank() == 0:
            with LOG.open("a") as log:
                log.write(f"{state.batch} {hvd.size()}\n")
        state.batch += 1
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, batch=0)
state.register_reset_callbacks([exchanged.clear])
train(state)
