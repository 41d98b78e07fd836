"""Start a job of several ranks, wait for it no longer than agreed, leave no process behind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .report import Report

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",  # one job serves tests of many process sets
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",  # names the ranks that are missing in the log
    "OMP_NUM_THREADS": "1",  # ranks share the cores of one machine
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",  # containers and CI
    "--oversubscribe",  # more ranks than cores
    "--bind-to", "none",
    "--mca", "btl_vader_single_copy_mechanism", "none",  # not permitted in most containers
]  # fmt: skip


@functools.cache
def missing(launcher: str) -> str | None:
    """Why this launcher cannot be used here; ``None`` if it can."""
    if launcher == "gloo":
        return None
    if not shutil.which("mpirun"):
        return "mpirun is not on PATH"
    check = "import horovod.torch, sys; sys.exit(not horovod.torch.mpi_built())"
    built = subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0
    return None if built else "Horovod is built without MPI (no mpicxx when it was)"


@functools.cache
def network() -> tuple[str, ...]:
    """What a command begins with to have a loopback of its own, where this user may make one.

    Two of the usual packets there, of 64 KB, fill a socket's buffer. Its reader then announces a
    window of zero bytes, and the writer asks again after 0.2 s: 25 MB took 22 s, and 3 so.
    """
    script = 'ip link set lo up mtu 16000 && exec "$@"'
    for options in ((), ("--user", "--map-root-user")):
        command = ("unshare", "--net", *options, "sh", "-c", script, "sh")
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
    return ()


@dataclass(frozen=True)
class Job:
    """Pytest on ``np`` ranks.

    ``limit`` is for one test and ends a job that hangs with the stacks of all threads; the
    ``job_limit`` behind it is for the whole and catches what even that does not.
    """

    np: int
    arguments: tuple[str, ...]
    launcher: str = "gloo"
    limit: float = 120.0
    job_limit: float = 900.0

    def command(self, folder: Path) -> list[str]:
        """The launcher's command line."""
        rank = [sys.executable, "-m", "tests.parallel.rank", str(folder), str(self.limit)]
        launch = {
            "gloo": [str(Path(sys.executable).with_name("horovodrun")), "--gloo",
                     "-H", f"localhost:{self.np}"],
            "mpi": MPIRUN,
        }[self.launcher]  # fmt: skip
        return [*network(), *launch, "-np", str(self.np), *rank, *self.arguments]

    def run(self, folder: Path) -> Report:
        """Run it, with ``folder`` for the ranks' logs and findings."""
        env = {**os.environ, **ENVIRONMENT}
        if self.launcher == "mpi":
            env.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
        start = time.monotonic()
        with (folder / "launcher.log").open("w") as log:
            process = subprocess.Popen(
                self.command(folder),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(self.job_limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end(process, folder)
        return Report.read(folder, self.np, status, time.monotonic() - start)


def end(process: subprocess.Popen, folder: Path) -> None:
    """End the launcher, then what is left of the ranks, which may have sessions of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for record in folder.glob("rank*.json"):
        pid = json.loads(record.read_text())["pid"]
        with contextlib.suppress(OSError):
            # Process ids are used again: make sure that it is one of ours.
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
