"""What Horovod is built for: one interpreter, its frameworks, and the machine's MPI."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

from .problem import Problem

HOROVOD = "0.28.1"

# Raise it when the way of building changes, so that wheels built the old way are not reused.
RECIPE = 1

TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")

# What Horovod's build reads from the environment, beyond what the options of this script decide:
# a wheel made with one setting must not serve another.
SETTINGS = re.compile(
    r"HOROVOD_(ALLOW_MIXED|BUILD_|CCL|CPU_OPERATIONS|CUDA_|DEBUG|GPU|LOCAL_VERSION|MPICXX_SHOW"
    r"|NCCL_|ROCM_|WITH(OUT)?_(NVTX|MXNET))|CXXFLAGS$|LDFLAGS$"
)


def version_tuple(version: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as ``(2, 13, 0)``."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def installed(*names: str) -> str | None:
    """Version of the first of these distributions that this interpreter has, else ``None``."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def build_settings() -> tuple[tuple[str, str], ...]:
    """What the environment says to Horovod's build, as HOROVOD_GPU_OPERATIONS=NCCL."""
    return tuple(sorted(item for item in os.environ.items() if SETTINGS.match(item[0])))


def mpi_version() -> str | None:
    """What ``mpicxx`` would link with, e.g. ``openmpi-4.1.4``; ``None`` without ``mpicxx``."""
    if not shutil.which("mpicxx"):
        return None
    for command in (["mpirun", "--version"], ["mpicxx", "-show"]):
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if "Open MPI" in out:
            return "openmpi-" + ".".join(map(str, version_tuple(out)))
        if out:
            return "mpi-" + hashlib.sha256(out.encode()).hexdigest()[:8]
    return "mpi-unknown"


@dataclass(frozen=True)
class Target:
    """Everything that decides whether a built wheel fits."""

    python: str
    platform: str
    torch: str | None
    tensorflow: str | None
    mpi: str | None
    settings: tuple[tuple[str, str], ...] = ()
    horovod: str = HOROVOD
    recipe: int = RECIPE

    @property
    def key(self) -> str:
        """Name of the wheel's folder in the cache: readable in front, a digest of all behind.

        >>> Target("cpython-311", "linux-x86_64", "2.13.0+cpu", None, "openmpi-4.1.4").key
        'horovod-0.28.1-cpython-311-torch-2.13.0+cpu-openmpi-4.1.4-420e661ca1'
        """
        parts = [f"horovod-{self.horovod}", self.python]
        parts += [f"torch-{self.torch}"] if self.torch else []
        parts += [f"tensorflow-{self.tensorflow}"] if self.tensorflow else []
        parts += [self.mpi] if self.mpi else []
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return "-".join([*parts, digest[:10]])

    @property
    def cxx_standard(self) -> int:
        """The C++ standard that torch's headers ask for (Horovod itself asks CMake for 14)."""
        return 20 if self.torch and version_tuple(self.torch) >= (2, 9) else 17

    def __str__(self) -> str:
        frameworks = [f"torch {self.torch}"] if self.torch else []
        frameworks += [f"TensorFlow {self.tensorflow}"] if self.tensorflow else []
        transports = "Gloo and " + self.mpi.replace("-", " ") if self.mpi else "Gloo"
        return f"Horovod {self.horovod} for {' and '.join(frameworks)}, with {transports}"


def find_target(torch: bool | None, tensorflow: bool | None, mpi: str) -> Target:
    """Look at this interpreter and this machine.

    ``torch`` and ``tensorflow``: ``True`` demands it, ``False`` leaves it out, ``None`` takes
    what is installed. ``mpi``: ``"yes"``, ``"no"``, or ``"auto"`` for where ``mpicxx`` exists.
    """
    torch_version = None if torch is False else installed("torch")
    tensorflow_version = None if tensorflow is False else installed(*TENSORFLOW_NAMES)
    mpi_found = None if mpi == "no" else mpi_version()
    if torch and not torch_version:
        raise Problem(
            f"torch is not installed for {sys.executable}",
            f"{sys.executable} -m pip install torch, or leave it out with --no-torch",
        )
    if tensorflow and not tensorflow_version:
        raise Problem(
            f"TensorFlow is not installed for {sys.executable}",
            f'{sys.executable} -m pip install "tensorflow-cpu<2.16" "numpy<2" '
            "(Python 3.11 or older), or leave it out with --no-tensorflow",
        )
    if not torch_version and not tensorflow_version:
        raise Problem(
            f"{sys.executable} has neither torch nor TensorFlow: nothing to build Horovod for",
            f"install them first, e.g. {sys.executable} -m pip install torch",
        )
    if mpi == "yes" and not mpi_found:
        raise Problem(
            "--mpi yes, but there is no mpicxx on PATH",
            "apt-get install libopenmpi-dev openmpi-bin (or load your cluster's MPI module), "
            "or build with --mpi no",
        )
    return Target(
        python=sys.implementation.cache_tag or platform.python_version(),
        platform="-".join([sys.platform, platform.machine(), *platform.libc_ver()]),
        torch=torch_version,
        tensorflow=tensorflow_version,
        mpi=mpi_found,
        settings=build_settings(),
    )
