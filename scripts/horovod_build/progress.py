"""Run a long command, keep its whole output in a log, and show how far it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PERCENT = re.compile(r"\[\s*(\d+)%\]")
# What pip and the build do in the quiet time before the first percentage.
PHASES = {
    "Installing collected packages": "unpacking",
    "Running CMake in": "configuring",
    "Detecting CXX compiler": "configuring: compilers",
    "Found MPI": "configuring: MPI found",
    "Found Tensorflow": "configuring: TensorFlow found",
    "Found Pytorch": "configuring: torch found",
    "Build files have been written": "compiling",
}
PACKAGE = re.compile(r"^Collecting ([\w.-]+)")
PLAIN_INTERVAL = 20.0  # seconds between lines where the output is not a terminal


def read_line(line: str, phase: str) -> str:
    """The phase after this line of build output.

    >>> read_line("[ 42%] Building CXX object horovod/torch/adapter_v2.cc.o", "compiling")
    'compiling  42%'
    """
    percent = PERCENT.search(line)
    if percent:
        return f"compiling {int(percent[1]):3d}%"
    package = PACKAGE.search(line)
    if package:
        return f"getting {package[1]}"
    return next((name for mark, name in PHASES.items() if mark in line), phase)


class Display:
    """One line that is rewritten on a terminal, and a line now and then elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = self.shown_at = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def update(self, phase: str, *, last: bool = False) -> None:
        """Show ``phase`` with the time passed so far."""
        now = time.monotonic()
        passed = f"{int(now - self.start) // 60}:{int(now - self.start) % 60:02d}"
        text = f"  {self.title}: {phase} ({passed})"
        if self.terminal:
            print(f"\r\x1b[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or now - self.shown_at >= PLAIN_INTERVAL:
            self.shown_at = now
            print(text, file=sys.stderr, flush=True)


def run_logged(command: list[str], env: Mapping[str, str], log: Path, title: str) -> int:
    """Run ``command`` with its output appended to ``log``; returns its exit status.

    Interrupting ends every process it started.
    """
    display = Display(title)
    phase = "running"
    with log.open("a", errors="replace") as sink:
        print(f"$ {' '.join(command)}", file=sink, flush=True)
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            with process.stdout as output:
                for line in output:
                    sink.write(line)
                    phase = read_line(line, phase)
                    display.update(phase)
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    display.update("done" if status == 0 else f"failed with status {status}", last=True)
    return status
