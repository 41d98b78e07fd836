"""Load each binding in a process of its own and let it reduce one tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .problem import Problem
from .target import Target

CHECK = """
import json, sys
import horovod.{module} as hvd
{imports}
hvd.init()
total = hvd.allreduce({tensor}, op=hvd.Sum, name="check")
assert [float(x) for x in total] == [1.0, 2.0], total
print(json.dumps(dict(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()),
                      nccl=bool(hvd.nccl_built()))))
"""
BINDINGS = {
    "torch": CHECK.format(
        module="torch", imports="import torch", tensor="torch.tensor([1.0, 2.0])"
    ),
    "tensorflow": CHECK.format(
        module="tensorflow", imports="import tensorflow as tf", tensor="tf.constant([1.0, 2.0])"
    ),
}


def verify(target: Target) -> list[str]:
    """One line per binding that works; `Problem` for the first that does not."""
    lines = []
    # One process is no MPI job: Gloo needs no launcher for it.
    env = {**os.environ, "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    env["TF_CPP_MIN_LOG_LEVEL"] = "2"
    for binding, wanted in {"torch": target.torch, "tensorflow": target.tensorflow}.items():
        if not wanted:
            continue
        done = subprocess.run(
            [sys.executable, "-c", BINDINGS[binding]], env=env, capture_output=True, text=True
        )
        if done.returncode:
            tail = "\n    ".join(done.stderr.strip().splitlines()[-6:])
            raise Problem(
                f"horovod.{binding} was installed but does not work:\n    {tail}",
                "build it again for what is installed now: add --force",
            )
        built = json.loads(done.stdout.splitlines()[-1])
        if target.mpi and not built["mpi"]:
            raise Problem(
                f"horovod.{binding} was built without MPI although {target.mpi} is there",
                "build again with --force, or say --mpi no",
            )
        transports = ", ".join(name for name, there in built.items() if there)
        lines.append(f"horovod.{binding} loads and reduces ({transports})")
    return lines
