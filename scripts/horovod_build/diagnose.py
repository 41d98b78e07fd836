"""From a failed log to the lines that matter and what to do about them."""

from __future__ import annotations

import re

# The first pattern that is found decides, so causes stand before their consequences.
CAUSES = [
    (
        r"No space left on device",
        "the disk is full",
        "free some space, or point --cache and TMPDIR to another disk",
    ),
    (
        r"Killed signal terminated program|virtual memory exhausted|cannot allocate memory",
        "the compiler ran out of memory",
        "run again with MAKEFLAGS=-j1",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|Failed to establish a new "
        r"connection|Network is unreachable|Connection (refused|timed out)|ProxyError|"
        r"getaddrinfo failed",
        "the package index cannot be reached",
        "check the network and pip's settings (PIP_INDEX_URL, proxy); what was downloaded is kept",
    ),
    (
        r"No matching distribution found for (\S+)",
        "pip finds no {1}",
        "check the network and pip's settings (PIP_INDEX_URL, PIP_NO_INDEX, proxy)",
    ),
    (
        r"Compatibility with CMake < 3\.5 has been removed",
        "this CMake is too new for Horovod's bundled Gloo",
        'pip install "cmake<4", or name an older one in HOROVOD_CMAKE',
    ),
    (
        r"Python\.h: No such file",
        "the C headers of this Python are missing",
        "apt-get install python3-dev",
    ),
    (
        r"requires? (at least )?C\+\+(17|20)|C\+\+(17|20) or later compatible compiler",
        "the compiler was not put into the C++ mode that torch's headers need",
        "let this script choose the compiler: unset CXXFLAGS, and set CXX to g++ 11 or newer",
    ),
    (
        r"(mpi\.h: No such file|Could NOT find MPI)",
        "MPI's headers are missing",
        "apt-get install libopenmpi-dev, or build with --mpi no",
    ),
    (
        r"(nccl\.h: No such file|Could NOT find NCCL)",
        "NCCL was asked for (HOROVOD_GPU_OPERATIONS) but its headers are missing",
        "install libnccl-dev, or name its folder in HOROVOD_NCCL_HOME",
    ),
    (
        r"this PyTorch installation does not support CUDA",
        "GPU operations were asked for, and torch is a CPU build or finds no CUDA toolkit",
        "install a CUDA build of torch and the toolkit, and set CUDA_HOME to its folder; or unset "
        "HOROVOD_GPU_OPERATIONS",
    ),
    (
        r"Could NOT find CUDAToolkit|CUDA_HOME environment variable is not set"
        r"|nvcc: (command )?not found",
        "the CUDA toolkit, which GPU operations and a CUDA build of torch need, is missing or not "
        "whole",
        "install the toolkit and set CUDA_HOME and HOROVOD_CUDA_HOME to its folder; or, for CPUs, "
        "unset HOROVOD_GPU_OPERATIONS and install a CPU build of torch",
    ),
    (
        r"Could NOT find (Pytorch|Tensorflow)",
        "{1} does not import in the build",
        "try it by hand: python -c 'import torch, tensorflow'",
    ),
    (
        r"No module named '?(\w+)'?",
        "the build misses the Python module {1}",
        "pip install {1}, then run this again",
    ),
]

ERROR_LINE = re.compile(r"(\berror\b:|\bCMake Error|^ERROR:|undefined reference|fatal error)", re.I)
# pip and make close with these after every failure: true, and of no use.
ECHO = re.compile(r"subprocess-exited-with-error|Failed building wheel|Failed to build|Error [12]$")


def diagnose(log: str) -> tuple[str, str] | None:
    """The cause and the fix of a failure in ``log``, where it is a known one.

    >>> diagnose("cc1plus: Killed signal terminated program cc1plus")
    ('the compiler ran out of memory', 'run again with MAKEFLAGS=-j1')
    """
    for pattern, cause, fix in CAUSES:
        found = re.search(pattern, log, re.IGNORECASE)
        if found:
            groups = (found[0], *found.groups(""))
            return cause.format(*groups), fix.format(*groups)
    return None


def error_lines(log: str, count: int = 12) -> list[str]:
    """The first lines of ``log`` that look like errors, else its last ones."""
    lines = log.splitlines()
    errors = [line for line in lines if ERROR_LINE.search(line) and not ECHO.search(line)]
    return [line.strip()[:300] for line in errors[:count] or lines[-count:]]
