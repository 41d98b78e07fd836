"""pip with a log, progress, and failures that name their cause and fix."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .diagnose import diagnose, error_lines
from .problem import Problem
from .progress import run_logged


class Pip:
    """Runs the pip of one interpreter, all output in one log that starts empty."""

    def __init__(self, log: Path, python: str = sys.executable) -> None:
        self.log = log
        self.python = python
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def __call__(self, title: str, *arguments: str, env: dict | None = None) -> None:
        """``pip *arguments``, announced as ``title``."""
        start = self.log.stat().st_size
        command = [self.python, "-m", "pip", *arguments]
        if run_logged(command, env or os.environ, self.log, title) == 0:
            return
        with self.log.open(errors="replace") as log:
            log.seek(start)
            text = log.read()
        cause, fix = diagnose(text) or (
            "no cause that this script knows",
            "read the log from the first error on",
        )
        lines = "\n    ".join(error_lines(text))
        raise Problem(f"{title} failed: {cause}\n    {lines}\n  full log: {self.log}", fix)
