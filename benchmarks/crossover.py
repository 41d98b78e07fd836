"""Where alltoall and allgather overtake allgather alone, for exponential codes.

    horovodrun -np 2 python benchmarks/crossover.py [--repeats 20] [--tensors 8]

Every rank starts as many tensors of one size at once as a backward pass would, waits for all, and
takes the best time. The limit is `horovod_gqsgd.shards.GATHER_LIMIT`, in bytes of codes of all
ranks together.
"""

import argparse
import time

import horovod.torch as hvd
import torch
from rich.console import Console
from rich.table import Table

from horovod_gqsgd import shards
from horovod_gqsgd.torch import GlobalQSGD


def seconds(elements: int, tensors: int, repeats: int, limit: int) -> float:
    """Best time for one tensor, on the slowest rank."""
    shards.GATHER_LIMIT = limit
    compression = GlobalQSGD(levels="exponential", bits=8)
    gradients = [torch.randn(elements) for _ in range(tensors)]
    best = float("inf")
    for _ in range(repeats + 2):
        hvd.barrier()
        start = time.perf_counter()
        handles = []
        for i, gradient in enumerate(gradients):
            marked, _ctx = compression.compress(gradient)
            handles.append(hvd.allreduce_async_(marked, name=f"{elements}.{limit}.{i}"))
        for handle in handles:
            hvd.synchronize(handle)
        best = min(best, time.perf_counter() - start)
    return hvd.allreduce(torch.tensor(best / tensors), op=hvd.Max).item()


def main() -> None:
    """Print one line for every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tensors", type=int, default=8)
    arguments = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    title = f"{hvd.size()} ranks, {arguments.tensors} tensors at a time: milliseconds a tensor"
    table = Table("codes × n", "allgather", "alltoall + allgather", title=title)
    for exponent in range(14, 25):
        elements = 2**exponent // hvd.size()
        times = [
            seconds(elements, arguments.tensors, arguments.repeats, limit) for limit in (2**62, 0)
        ]
        table.add_row(f"{2**exponent // 1024} KiB", *(f"{1e3 * value:.2f}" for value in times))
    if hvd.rank() == 0:
        Console(width=80).print(table)


if __name__ == "__main__":
    main()
