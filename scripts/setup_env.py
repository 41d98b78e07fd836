#!/usr/bin/env python3
"""Make ``.venv`` ready: pinned dependencies, Horovod, this package. Seconds when it already is.

Everything the environment is made from goes into a fingerprint; `READY` holds the fingerprint of
the last set-up that reached its end. Where they differ, set-up runs again and every step takes
up what an earlier one, finished or interrupted, left behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PYTHON = (3, 11)
if sys.version_info[:2] != PYTHON:
    sys.exit(
        f"error: this is Python {sys.version.split()[0]} ({sys.executable}), and the development "
        "environment needs 3.11: TensorFlow 2.15, the last that Horovod works with, ends there, "
        "and this package begins there\n"
        "  fix: install Python 3.11 and name it: make PYTHON=/path/to/python3.11 …"
    )

# After the check, since an older Python could not even read them.
from horovod_build.cache import exclusive
from horovod_build.pip import Pip
from horovod_build.problem import Problem
from horovod_build.target import build_settings, mpi_version

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
READY = VENV / "ready"
CONSTRAINTS = ROOT / "constraints.txt"
# What must not reach the build: other packages, and the settings of the make that runs us, which
# would replace the number of parallel jobs that fits the machine.
LEAKS = ["PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"]
# Imports nothing heavy, and fails where an interrupted `venv` left out pip.
USABLE = "import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))"


def say(message: str) -> None:
    """Tell the user; stdout belongs to the command that set-up precedes."""
    print(message, file=sys.stderr, flush=True)


def fingerprint() -> str:
    """Digest of all that decides what belongs into the environment."""
    inputs = [CONSTRAINTS, ROOT / "setup.py", Path(__file__)]
    inputs += sorted((ROOT / "scripts" / "horovod_build").glob("*.py"))
    facts = [str(ROOT), sys.version, str(mpi_version()), repr(build_settings())]
    facts += [path.read_text() for path in inputs]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def venv_usable() -> bool:
    """Whether ``.venv`` was made here (its scripts hold absolute paths), whole, for 3.11."""
    settings = VENV / "pyvenv.cfg"
    if not settings.exists() or str(VENV) not in settings.read_text():
        return False
    try:
        return subprocess.run([VENV_PYTHON, "-c", USABLE], capture_output=True).returncode == 0
    except OSError:
        return False


def create_venv() -> None:
    """Make ``.venv`` anew."""
    say(f"creating {VENV}")
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True)
    if done.returncode:
        raise Problem(
            f"{sys.executable} cannot make a virtualenv: {(done.stdout + done.stderr).strip()}",
            "apt-get install python3.11-venv (Debian, Ubuntu), or another Python 3.11: PYTHON=…",
        )


def forget_interrupted_installs() -> None:
    """Remove the metadata of packages whose installation was cut short.

    pip writes ``INSTALLER`` and ``RECORD`` last. Metadata without them makes it believe that the
    package is there; without any metadata it installs the package over the remains.
    """
    for info in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists() or not (info / "RECORD").exists():
            say(f"installing {info.name.split('-')[0]} again: it was interrupted")
            shutil.rmtree(info)


def set_up() -> None:
    """Bring ``.venv`` to the state that `fingerprint` describes."""
    if not venv_usable():
        create_venv()
    forget_interrupted_installs()
    say("setting up .venv; the first time takes some minutes, mostly for building Horovod")
    pip = Pip(VENV / "setup.log", str(VENV_PYTHON))
    install = ["install", "--constraint", str(CONSTRAINTS)]
    pip("installing build tools", *install, "setuptools", "wheel")
    pip(
        "installing dependencies and this package", *install, "--no-build-isolation",
        "--editable", f"{ROOT}[cuda12,dev]", "torch", "tensorflow-cpu",
    )  # fmt: skip
    build_horovod()


def build_horovod() -> None:
    """Run the build script with the environment's Python."""
    script = str(ROOT / "scripts" / "build_horovod.py")
    process = subprocess.Popen([VENV_PYTHON, script, "--torch", "--tensorflow"])
    try:
        status = process.wait()
    except BaseException:  # let it remove what it has begun
        process.terminate()
        process.wait()
        raise
    if status:
        sys.exit(status)  # it has said why


def main() -> int:
    """Set up if needed; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we started ends, too
    try:
        with exclusive(ROOT / ".setup.lock", say):
            wanted = fingerprint()
            if READY.exists() and READY.read_text() == wanted:
                return 0
            READY.unlink(missing_ok=True)
            for name in LEAKS:
                os.environ.pop(name, None)
            set_up()
            READY.write_text(wanted)
    except Problem as problem:
        say(f"error: {problem}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run goes on from here")
        return 130
    say(".venv is ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
