"""Where alltoall and allgather overtake allgather alone, for exponential codes; and in what parts.

    horovodrun -np 2 python benchmarks/crossover.py [--repeats 20] [--tensors 8]
    cluster.py --hosts 4 --rate 200mbit -- python benchmarks/crossover.py --sections 5

Every rank starts as many tensors of one size at once as a backward pass would, and waits for all.
What takes turns is compared by medians, of the slowest rank. The limit is
`horovod_gqsgd.shards.GATHER_LIMIT`, in bytes of codes of all ranks together. ``--sections`` instead
compares sizes of the sections in which a tensor of so many million elements travels with 4 bits,
`horovod_gqsgd.sections.CODES`.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import horovod.torch as hvd
import torch
from meeting import meet
from rich.console import Console
from rich.table import Table

from horovod_gqsgd import sections, shards
from horovod_gqsgd.torch import GlobalQSGD

UNLIMITED = 2**62
KIB = 1024
SECTIONS = [size * KIB for size in (180, 360, 448, 720, 1080, 2160)]


def seconds(gradients: list[torch.Tensor], bits: int, limit: int, size: int) -> float:
    """Time of one exchange of all tensors, for each of them."""
    shards.GATHER_LIMIT, sections.CODES = limit, size
    name = f"{len(gradients[0])}.{limit}.{size}"
    compression = GlobalQSGD(levels="exponential", bits=bits)
    meet()
    start = time.perf_counter()
    handles = []
    for i, gradient in enumerate(gradients):
        marked, _ctx = compression.compress(gradient)
        handles.append(hvd.allreduce_async_(marked, name=f"{name}.{i}"))
    for handle in handles:
        hvd.synchronize(handle)
    return (time.perf_counter() - start) / len(gradients)


def compare(ways: Sequence[Callable[[], float]], repeats: int) -> list[str]:
    """Milliseconds of every way."""
    times: list[list[float]] = [[] for _ in ways]
    for round_ in range(repeats + 2):
        for way, taken in zip(ways, times, strict=True):
            taken.append(way())
            if round_ < 2:  # compiles, fills caches
                taken.clear()
    ranks = hvd.allgather_object(times)
    slowest = (
        [max(values) for values in zip(*way, strict=True)] for way in zip(*ranks, strict=True)
    )
    return [f"{1e3 * median(values):.1f}" for values in slowest]


def main() -> None:
    """Print one line for every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tensors", type=int, default=8)
    parser.add_argument("--sections", type=float, metavar="MILLIONS")
    arguments = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    n, repeats = hvd.size(), arguments.repeats
    if arguments.sections:
        elements = int(1e6 * arguments.sections)
        gradients = [torch.randn(elements)]
        ways = [partial(seconds, gradients, 4, 0, size) for size in SECTIONS]
        table = Table("section", "ms", title=f"{n} ranks: {elements:,} elements of 4 bits")
        for size, taken in zip(SECTIONS, compare(ways, repeats), strict=True):
            table.add_row(f"{size // KIB} KiB", taken)
    else:
        title = f"{n} ranks, {arguments.tensors} tensors at a time: milliseconds a tensor"
        table = Table("codes × n", "allgather", "alltoall + allgather", title=title)
        for exponent in range(14, 25):
            gradients = [torch.randn(2**exponent // n) for _ in range(arguments.tensors)]
            limits = (UNLIMITED, 0)
            ways = [partial(seconds, gradients, 8, limit, sections.CODES) for limit in limits]
            times = compare(ways, repeats)
            table.add_row(f"{2**exponent // KIB} KiB", *times)
    if hvd.rank() == 0:
        Console(width=80).print(table)


if __name__ == "__main__":
    main()
