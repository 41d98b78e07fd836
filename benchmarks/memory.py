"""Peak memory of training with one compression, kernels loaded in any case.

One of the jobs of `make bench`; by hand:

    cluster.py --hosts 2 -- python benchmarks/memory.py --json FILE --compression gqsgd
"""

import argparse
import json
import resource
from pathlib import Path

import horovod.torch as hvd
import torch
from contenders import contender
from models import MODELS, workload

from horovod_gqsgd.torch import GlobalQSGD, statistics

STEPS = 6


def load_kernels() -> None:
    """Import Numba and load the kernels, serial and parallel, by a small exchange of each kind."""
    for elements in (2000, 200_000):
        for scheme in (GlobalQSGD(), GlobalQSGD(levels="exponential", bits=4)):
            name = f"{scheme.config.levels}.{elements}"
            hvd.allreduce(torch.ones(elements), name=name, compression=scheme)


def peak() -> int:
    """Largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Write the largest of all ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--compression", default="gqsgd")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    load_kernels()
    racer = contender(options.compression, workload(options.model, batch=8))
    statistics.reset()
    for _ in range(STEPS):
        racer.step()
    peaks = hvd.allgather_object(peak())
    if hvd.rank() == 0:
        handed = (statistics.norm_bytes + statistics.word_bytes + statistics.code_bytes) / STEPS
        options.json.write_text(json.dumps({"peak": max(peaks), "compressed": handed}))


if __name__ == "__main__":
    main()
