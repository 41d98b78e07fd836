"""A task trained with one compression, step by step, and what it took."""

import math
import time
from collections import Counter
from dataclasses import asdict

import horovod.torch as hvd
import torch
from compressions import compressor, sent_bytes
from tasks import Task

from horovod_gqsgd.torch import statistics


class Training:
    """Stock Horovod, but for ``compression=``.

    Names begin with compression and seed: several trainings may take turns in one job, and the
    dither of one, a function of seed, step and name, does not depend on the others.
    """

    def __init__(self, task: Task, compression: str, seed: int) -> None:
        self.task, self.compression, self.seed = task, compression, seed
        torch.manual_seed(seed)
        self.model = task.network()
        prefix = f"{task.name}.{compression}.{seed}"
        self.named = [(f"{prefix}.{key}", p) for key, p in self.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(
            task.optimizer(self.model),
            named_parameters=self.named,
            compression=compressor(compression),
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, task.rate)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.batches = task.batches(seed, hvd.rank(), hvd.size())
        self.losses: list[float] = []
        self.decibels: list[float] = []
        self.seconds = 0.0
        self.totals: Counter = Counter()

    def advance(self, steps: int) -> None:
        """Train for some steps."""
        statistics.reset()
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, next(self.batches))
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.losses.append(loss.item())
        self.seconds += time.perf_counter() - start
        self.totals.update(asdict(statistics))

    def probe(self) -> None:
        """Signal-to-noise ratio of the exchanged mean on the gradients of the next batch.

        Against an exact allreduce of the same gradients; `autograd.grad` leaves the optimizer and
        its hooks alone.
        """
        loss = self.task.loss(self.model, next(self.batches))
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        signal = noise = 0.0
        scheme = compressor(self.compression)
        for (name, _), gradient in zip(self.named, gradients, strict=True):
            exact = hvd.allreduce(gradient, name=f"{name}.exact")
            given = hvd.allreduce(gradient, name=f"{name}.probe", compression=scheme)
            signal += exact.double().square().sum().item()
            noise += (exact.double() - given.double()).square().sum().item()
        self.decibels.append(10 * math.log10(signal / noise) if noise else math.inf)

    def result(self) -> dict:
        """Everything measured, ready for JSON; infinities as None."""
        steps = len(self.losses)
        decibels = sum(self.decibels) / max(len(self.decibels), 1)
        return {
            "task": self.task.name,
            "compression": self.compression,
            "seed": self.seed,
            "metric": self.task.evaluate(self.model),
            "steps_per_second": steps / self.seconds,
            "bytes_per_step": sent_bytes(self.compression, self.model, self.totals, steps),
            "snr_db": decibels if math.isfinite(decibels) else None,
            "losses": self.losses,
        }
