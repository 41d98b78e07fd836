"""Turn Horovod's source distribution into a wheel for a `Target`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .pip import Pip
from .preflight import available_memory, cmake_version, compiler, parallel_jobs
from .target import Target

# Needed to build, and put into a folder of their own: the user's environment stays as it is.
# Horovod's set-up is known to build with setuptools before 81.
BUILD_TOOLS = [
    "setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi>=1.4"
]  # fmt: skip
CMAKE = "cmake>=3.13,<4"


def shim_text(cxx: list[str], standard: int, debug: bool = False) -> str:
    """Shell script that compiles with a newer C++ standard than Horovod asks for.

    Horovod's CMake files demand C++14 and torch's headers refuse it (horovod#3941, #3996, #4014).
    Replacing the flag on its way to the compiler leaves Horovod's source untouched. Debug
    information would triple the size of the wheel and is left out.
    """
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f'args=("${{@/#-std=c++14/-std=c++{standard}}}")',
            f'args=("${{args[@]/#-std=gnu++14/-std=gnu++{standard}}}")',
            f'exec {shlex.join(cxx)} "${{args[@]}}"' + ("" if debug else " -g0"),
            "",
        ]
    )


def build_environment(target: Target, tools: Path, shim: Path, cmake: Path | None) -> dict:
    """Environment variables of the build; those of the user that we do not set pass through."""
    env = dict(os.environ)
    for framework, wanted in {
        "PYTORCH": target.torch,
        "TENSORFLOW": target.tensorflow,
        "MPI": target.mpi,
        "GLOO": True,
        "MXNET": None,
    }.items():
        env.pop(f"HOROVOD_WITH_{framework}", None)
        env.pop(f"HOROVOD_WITHOUT_{framework}", None)
        env[f"HOROVOD_WITH_{framework}" if wanted else f"HOROVOD_WITHOUT_{framework}"] = "1"
    env.update(
        CXX=str(shim),
        PYTHONPATH=os.pathsep.join(filter(None, [str(tools), env.get("PYTHONPATH")])),
        # CMake 4 refuses the old cmake_minimum_required of the bundled Gloo without this.
        CMAKE_POLICY_VERSION_MINIMUM="3.5",
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    # Horovod's default of -j8 is too much for small machines: TensorFlow's headers take memory.
    if not env.get("MAKEFLAGS"):
        jobs = parallel_jobs(len(os.sched_getaffinity(0)), available_memory())
        env["MAKEFLAGS"] = f"-j{jobs}"
    if cmake:
        env["HOROVOD_CMAKE"] = str(cmake)
    return env


def fetch_source(pip: Pip, cache: Path, target: Target) -> Path:
    """Horovod's source distribution, downloaded once for all targets."""
    source = cache / "source" / f"horovod-{target.horovod}.tar.gz"
    if not source.exists():
        pip(
            "downloading Horovod", "download", "--no-deps", "--no-binary", "horovod",
            "--dest", str(source.parent), f"horovod=={target.horovod}",
        )  # fmt: skip
    return source


def build_wheel(pip: Pip, target: Target, cache: Path, folder: Path) -> Path:
    """Build in ``folder``; returns the folder inside it that holds the finished wheel."""
    source = fetch_source(pip, cache, target)
    tools, finished, shim = folder / "tools", folder / "finished", folder / "c++"
    fetch_cmake = cmake_version() < (3, 13)
    pip(
        "getting build tools", "install", "--target", str(tools),
        *BUILD_TOOLS, *([CMAKE] if fetch_cmake else []),
    )  # fmt: skip
    debug = os.environ.get("HOROVOD_DEBUG") == "1"
    shim.write_text(shim_text(compiler(), target.cxx_standard, debug))
    shim.chmod(0o755)
    cmake = tools / "cmake/data/bin/cmake" if fetch_cmake else None
    env = build_environment(target, tools, shim, cmake)
    env["TMPDIR"] = str(folder)  # pip builds in there, so that one removal removes everything
    pip(
        "building Horovod", "wheel", "--verbose", "--no-deps", "--no-build-isolation",
        "--no-cache-dir", "--wheel-dir", str(finished), str(source), env=env,
    )  # fmt: skip
    return finished
