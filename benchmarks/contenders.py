"""What takes turns in a comparison: a model each, trained one way or another.

``none``, ``fp16`` and ``gqsgd[:…]`` are Horovod's optimizer with that compression; ``ddp``,
``ddp:fp16`` and ``ddp:powersgd`` PyTorch's DistributedDataParallel over Gloo without a hook, with
the fp16 hook and with PowerSGD of rank 4; ``alone`` does not communicate; ``bare[:…]`` hands norms
and words or codes of the same size to Horovod as ``gqsgd[:…]`` does, but quantises nothing. It does
what no compressor can do without: it reads a gradient to find its norms, reads it again before the
messages leave, and writes it when the last of them is back. What the scheme could reach at most,
with kernels as fast as memory and nothing else to do.
"""

import functools
import itertools
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Protocol

import horovod.torch as hvd
import numpy as np
import torch
import torch.distributed as dist
from codec_floors import CHUNK, read
from compressions import compressor, parameters
from models import Workload
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from horovod_gqsgd import lanes, norms, sections, shards
from horovod_gqsgd.codes import packed_size
from horovod_gqsgd.config import Config
from horovod_gqsgd.kernels import norm
from horovod_gqsgd.torch.threads import share_threads

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


class Bare(Alone):
    """The norms of GlobalQSGD with these parameters, and messages of the size of its others."""

    def __init__(self, work: Workload, config: Config) -> None:
        super().__init__(work)
        share_threads()
        self.under_way: list[tuple[int, Iterator[int]]] = []
        for name, parameter in work.model.named_parameters():
            steps = functools.partial(_bare, parameter, config, f"bare {config}.{name}")
            parameter.register_post_accumulate_grad_hook(lambda _, s=steps: self._go_on(s()))

    def _go_on(self, steps: Iterator[int]) -> None:
        self.under_way += [(handle, steps) for handle in itertools.islice(steps, 1)]

    def step(self) -> None:
        """Forward, backward, exchange, and an update by gradients that were not exchanged."""
        self.optimizer.zero_grad()
        self.work.loss().backward()
        while self.under_way:
            done = [item for item in self.under_way if hvd.poll(item[0])]
            for handle, steps in done:
                self.under_way.remove((handle, steps))
                hvd.synchronize(handle)
                self._go_on(steps)
            time.sleep(1e-3)  # synchronize alone would spin, on cores that others need
        self.optimizer.step()


def _bare(parameter: torch.Tensor, config: Config, name: str) -> Iterator[int]:
    """Handles to wait for, one after the other: of norms, which are real, then of the rest."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.numel() < config.min_size:
        yield hvd.allreduce_async(gradient, name=name)
        return
    flat = gradient.view(-1).numpy()
    head = torch.empty(norms.blocks(flat.size, config.block), dtype=torch.int32)
    norm.local(flat, config.q, config.p, config.block, head.numpy())
    yield hvd.allreduce_async_(head, name=name, op=hvd.Max)
    yield from (_bare_words if config.levels == "linear" else _bare_codes)(flat, config, name)
    gradient.zero_()


def _bare_words(flat: np.ndarray, config: Config, name: str) -> Iterator[int]:
    """Handles of words, which leave in sections, each when its elements have been read."""
    words = torch.zeros(lanes.word_count(flat.size, config.bits), dtype=torch.int32)
    most = sections.ELEMENTS
    started = []
    for i, part in enumerate(words.split(most * config.bits // 32)):
        _read(flat[i * most : (i + 1) * most])
        started.append(hvd.allreduce_async_(part, name=f"{name}.{i}", op=hvd.Sum))
    yield from started


def _bare_codes(flat: np.ndarray, config: Config, name: str) -> Iterator[int]:
    """Handles of codes, which leave in sections, each when its elements have been read."""
    size, bits, n = flat.size, config.bits, hvd.size()
    codes = torch.zeros(packed_size(size, bits), dtype=torch.uint8)
    if shards.gathers(codes.numel(), n):
        _read(flat)
        yield hvd.allgather_async(codes, name=f"{name}.codes")
        return
    most = sections.CODES * 8 // bits
    scattered = []
    for i, part in enumerate(codes.split(sections.CODES)):
        _read(flat[i * most : (i + 1) * most])
        whole = part[: len(part) // n * n]
        scattered.append((hvd.alltoall_async(whole, name=f"{name}.{i}"), whole[: len(part) // n]))
    gathered = []
    for i, (handle, mine) in enumerate(scattered):
        yield handle
        gathered.append(hvd.allgather_async(mine, name=f"{name}.{i}.reduced"))
    yield from gathered


def _read(elements: np.ndarray) -> None:
    """Read float32 as fast as the memory gives them."""
    read(elements.view(np.int32), np.empty(elements.size // CHUNK, np.int32))


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
    scheme, _, rest = name.partition(":")
    if scheme == "ddp":
        return Distributed(work, rest)
    if scheme == "bare":
        return Bare(work, Config(**parameters(rest) if rest else {}))
    return Horovod(work, name)
