"""Run parallel tests by hand; see ``--help``."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from .job import Job, missing


def main() -> int:
    """Parse, run, tell; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.parallel",
        description="Run tests on several ranks. What is no option here goes to pytest.",
    )
    parser.add_argument("--np", type=int, default=2, help="number of ranks (2)")
    parser.add_argument("--launcher", choices=["gloo", "mpi"], default="gloo")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one test (120)")
    options, arguments = parser.parse_known_args()
    reason = missing(options.launcher)
    if reason:
        parser.error(f"--launcher {options.launcher}: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="parallel-tests-"))
    job = Job(options.np, tuple(arguments), options.launcher, options.limit)
    report = job.run(folder)
    if not report.passed:
        print(report.details())
    for test, reason in report.skipped.items():
        print(f"skipped {test}: {reason}")
    print(report.summary())
    if report.passed:
        shutil.rmtree(folder)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
