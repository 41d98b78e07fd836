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

from horovod_gqsgd import shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.torch import GlobalQSGD
from tests.parallel.torch.specification import expected, gradient

HOSTS, LOG = Path(sys.argv[1]), Path(sys.argv[2])
GROW, LOSE, END = 4, 8, 12
shards.GATHER_LIMIT = 4096  # codes of 8 bits, but not of 2, go by alltoall
CONFIGS = [Config(), *(Config(levels="exponential", bits=bits) for bits in (8, 2))]

hvd.init()
model = torch.nn.Linear(40, 40)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=GlobalQSGD,
)
exchanged: list[None] = []  # one for every batch since the world last changed


def check_average() -> None:
    """The counter of exchanges restarts with every change of the world."""
    step = len(exchanged)
    exchanged.append(None)
    everyones = [gradient(rank, 3000) for rank in range(hvd.size())]
    for config in CONFIGS:
        name = f"check {config}"
        compression = GlobalQSGD(levels=config.levels, bits=config.bits)
        result = hvd.allreduce(everyones[hvd.rank()], name=name, compression=compression)
        assert torch.equal(result, expected(everyones, config, name, step)), (hvd.size(), config)


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
            # Not before the others wait for it: what is handed to Horovod in the moment in which
            # its thread ends is never completed (operations.cc: shut_down is not read under the
            # lock of the queue).
            time.sleep(1)
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
