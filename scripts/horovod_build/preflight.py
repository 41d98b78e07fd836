"""Find out in a second what would otherwise fail after minutes of compiling."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from .problem import Problem
from .target import Target, installed, version_tuple

GIB = 1 << 30
DISK_NEEDED = 2 * GIB
MEMORY_PER_JOB = 2 * GIB  # the largest translation units, TensorFlow's, stay below it

INSTALL_COMPILER = (
    "apt-get install g++ make (Debian, Ubuntu), dnf install gcc-c++ make (Fedora), "
    "or conda install gxx make"
)


def compiler() -> list[str]:
    """The C++ compiler as the user set it in ``CXX``, else ``g++``."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def check_python() -> None:
    """Pip and the C headers of the running interpreter."""
    # Not importlib.util's: setuptools' hook answers that, with warnings where distutils is in use.
    if PathFinder.find_spec("pip") is None:
        raise Problem(f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip --upgrade")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        raise Problem(
            f"no C headers for this Python ({header} is missing)",
            "apt-get install python3-dev (Debian, Ubuntu), dnf install python3-devel (Fedora)",
        )


def check_frameworks(target: Target, numpy: str | None) -> None:
    """Versions that are known not to work together."""
    if not target.tensorflow:
        return
    if version_tuple(target.tensorflow) >= (2, 16):
        raise Problem(
            f"Horovod {target.horovod} does not work with TensorFlow {target.tensorflow}: "
            "its Keras binding needs Keras 2, and 2.15 is the last TensorFlow that has it",
            'pip install "tensorflow-cpu<2.16" "numpy<2" (needs Python 3.11 or older), '
            "or build for torch alone with --no-tensorflow",
        )
    if numpy and version_tuple(numpy) >= (2,):
        raise Problem(
            f"TensorFlow {target.tensorflow} was compiled for NumPy 1, this is NumPy {numpy}",
            'pip install "numpy<2" (torch runs with it too)',
        )


def check_compiler(target: Target) -> None:
    """A C compiler, make, and a C++ compiler for the standard that torch's headers ask for."""
    cxx = compiler()
    needed = {
        "C++ compiler": cxx[0],
        "C compiler": shlex.split(os.environ.get("CC", "")) or "cc",
        "make": "make",
    }
    for role, command in needed.items():
        program = command if isinstance(command, str) else command[0]
        if not shutil.which(program):
            raise Problem(f"no {role}: {program} is not on PATH", INSTALL_COMPILER)
    trial = subprocess.run(
        [*cxx, f"-std=c++{target.cxx_standard}", "-fsyntax-only", "-x", "c++", "-"],
        input="#include <concepts>\n" if target.cxx_standard >= 20 else "#include <optional>\n",
        capture_output=True,
        text=True,
    )
    if trial.returncode:
        version = subprocess.run([*cxx, "--version"], capture_output=True, text=True).stdout
        raise Problem(
            f"{' '.join(cxx)} cannot compile C++{target.cxx_standard}, which the headers of "
            f"torch {target.torch} need ({version.splitlines()[0] if version else 'no version'})",
            "install g++ 11 or newer and name it, e.g. apt-get install g++-12 && CXX=g++-12 …",
        )


def cmake_version() -> tuple[int, ...]:
    """Version of the CMake that the build would use; ``()`` for none."""
    try:
        out = subprocess.run(
            [os.environ.get("HOROVOD_CMAKE", "cmake"), "--version"], capture_output=True, text=True
        ).stdout
    except OSError:
        return ()
    found = re.search(r"version\s+(\S+)", out)
    return version_tuple(found[1]) if found else ()


def check_disk(folder: Path) -> None:
    """Room for the build tree."""
    free = shutil.disk_usage(folder).free
    if free < DISK_NEEDED:
        raise Problem(
            f"{folder} has {free / GIB:.1f} GiB free, the build needs {DISK_NEEDED / GIB:.0f}",
            "free some space, or point --cache to another disk",
        )


def parallel_jobs(cores: int, memory: int) -> int:
    """How many compilers fit into the cores and the memory (bytes) there are.

    >>> parallel_jobs(cores=8, memory=5 << 30)
    2
    """
    return max(1, min(cores, memory // MEMORY_PER_JOB))


def available_memory() -> int:
    """Bytes that new processes can use without swapping."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 8 * GIB


def preflight(target: Target, cache: Path) -> None:
    """Raise `Problem` for the first thing that would make the build fail."""
    check_python()
    check_frameworks(target, installed("numpy"))
    check_compiler(target)
    check_disk(cache)
