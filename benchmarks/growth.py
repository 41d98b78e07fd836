"""How the cost of an exchange grows: one number of parameters in so many tensors of equal size.

One of the jobs of `make bench`; by hand:

    cluster.py --hosts 4 -- python benchmarks/growth.py --json FILE --millions 10 --tensors 100
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

import horovod.torch as hvd
import torch
from compressions import compressor
from meeting import meet

GROUPED = ", 10 groups"
COMPRESSIONS = ["none", "gqsgd", f"gqsgd{GROUPED}", "gqsgd:levels=exponential,bits=4"]


def exchange(tensors: list[torch.Tensor], name: str) -> tuple[float, float]:
    """Seconds and CPU seconds for all tensors, started one after the other as hooks do.

    Or in ten groups, as with ``hvd.DistributedOptimizer(groups=10)``.
    """
    compression = compressor(name.removesuffix(GROUPED))
    meet()
    start, cpu = time.perf_counter(), time.process_time()
    compressed = [compression.compress(tensor)[0] for tensor in tensors]
    if name.endswith(GROUPED):
        size = -(-len(tensors) // 10)
        groups = [compressed[at : at + size] for at in range(0, len(tensors), size)]
        handles = [
            hvd.grouped_allreduce_async_(group, name=f"{name}.{i}")
            for i, group in enumerate(groups)
        ]
    else:
        handles = [
            hvd.allreduce_async_(tensor, name=f"{name}.{i}") for i, tensor in enumerate(compressed)
        ]
    for handle in handles:
        hvd.synchronize(handle)
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    """Write medians, of the slowest rank for the time and of all for the CPU time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=float, default=10, help="elements in all")
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    os.environ.setdefault("HOROVOD_CACHE_CAPACITY", str(3 * len(COMPRESSIONS) * options.tensors))
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.size()))
    size = int(options.millions * 1e6 / options.tensors)
    tensors = [torch.randn(size) for _ in range(options.tensors)]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMPRESSIONS}
    for i in range(options.rounds + 1):
        for name in COMPRESSIONS:
            taken = exchange(tensors, name)
            if i:  # the first compiles, and fills Horovod's cache
                times[name].append(taken)
        if hvd.rank() == 0:
            print(f"round {i}/{options.rounds}", flush=True)
    everyone = hvd.allgather_object(times)
    results = {}
    for name in COMPRESSIONS:
        ranks = [rank[name] for rank in everyone]
        slowest = [max(wall for wall, _ in values) for values in zip(*ranks, strict=True)]
        cpu = [cpu for rank in ranks for _, cpu in rank]
        results[name] = {"seconds": median(slowest), "cpu": median(cpu)}
    if hvd.rank() == 0:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
