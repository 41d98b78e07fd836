"""What takes turns in a comparison: a model each, trained one way or another.

``none``, ``fp16`` and ``gqsgd[:…]`` are Horovod's optimizer with that compression; ``ddp``,
``ddp:fp16`` and ``ddp:powersgd`` PyTorch's DistributedDataParallel over Gloo without a hook, with
the fp16 hook and with PowerSGD of rank 4; ``alone`` does not communicate.
"""

import os
import socket
from typing import Any, Protocol

import horovod.torch as hvd
import torch
import torch.distributed as dist
from compressions import compressor
from models import Workload
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

RATE = 0.01


class Contender(Protocol):
    """Something that can train a step."""

    def step(self) -> None:
        """Forward, backward, exchange, update."""


class Alone:
    """Compute only."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.optimizer: Any = torch.optim.SGD(work.model.parameters(), lr=RATE)

    def step(self) -> None:
        """Forward, backward, exchange if there is one, update."""
        self.optimizer.zero_grad()
        self.work.loss().backward()
        self.optimizer.step()


class Horovod(Alone):
    """Stock Horovod, but for ``compression=``; names keep the contenders of a job apart."""

    def __init__(self, work: Workload, compression: str) -> None:
        super().__init__(work)
        named = [(f"{compression}.{key}", p) for key, p in work.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer, named_parameters=named, compression=compressor(compression)
        )
        hvd.broadcast_parameters(work.model.state_dict(), root_rank=0)


class Distributed(Alone):
    """PyTorch's own data parallelism, among the same processes."""

    def __init__(self, work: Workload, hook: str) -> None:
        super().__init__(work)
        _join_torch()
        # PowerSGD's hook waits inside callbacks, which run on Gloo's two threads: with more than
        # one bucket both may wait, for ever.
        capacity = 1000 if hook == "powersgd" else None
        model = DistributedDataParallel(work.model, bucket_cap_mb=capacity)
        if hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.work = Workload(model, work.inputs, work.targets, work.criterion, work.unit)


def _join_torch() -> None:
    """Make torch's process group of Horovod's ranks, once."""
    if dist.is_initialized():
        return
    place = None
    if hvd.rank() == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            place = socket.gethostname(), probe.getsockname()[1]
    host, port = hvd.broadcast_object(place, root_rank=0, name="torch.distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0" if _has_eth0() else "lo")
    where = f"tcp://{host}:{port}"
    dist.init_process_group("gloo", where, rank=hvd.rank(), world_size=hvd.size())


def _has_eth0() -> bool:
    return "eth0" in {name for _, name in socket.if_nameindex()}


def contender(name: str, work: Workload) -> Contender:
    """By the names above."""
    if name == "alone":
        return Alone(work)
    scheme, _, hook = name.partition(":")
    if scheme == "ddp":
        return Distributed(work, hook)
    return Horovod(work, name)
