"""One rank of a job: pytest with a plugin, all output in a file of this rank's own.

What a rank found goes to ``rank<k>.json`` in the job's folder, where `report` reads it. The exit
status says only whether the rank came that far: launchers kill the other ranks at the first
non-zero status, and those would take their findings with them.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_LIMIT = 120.0  # seconds for imports and collection; TensorFlow on a busy machine is slow
GRACE = 10.0  # seconds that other ranks get to end a test that failed here
EXIT_LIMIT = 30.0  # seconds for shutting down after the last test


def rank_and_size() -> tuple[int, int]:
    """Place in the job, as the launchers tell it; ``(0, 1)`` outside of any."""
    for launcher in ("HOROVOD_{}", "OMPI_COMM_WORLD_{}"):
        if launcher.format("RANK") in os.environ:
            return int(os.environ[launcher.format("RANK")]), int(
                os.environ[launcher.format("SIZE")]
            )
    return 0, 1


class RankPlugin:
    """Time limits, the same tests on every rank, and the record of what happened."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self.rank, self.size = rank_and_size()
        self.log = (folder / f"rank{self.rank}.log").open("a", buffering=1)
        self.record: dict = {"pid": os.getpid(), "tests": None, "failed": {}, "skipped": {}}
        self.record.update(running=None, finished=False, ended_job=False, left=False)
        self.save()

    def save(self) -> None:
        """Write the record in one step, so that a killed rank leaves a whole one."""
        new = self.folder / f"rank{self.rank}.new"
        new.write_text(json.dumps(self.record))
        new.replace(self.folder / f"rank{self.rank}.json")

    def watch(self, seconds: float) -> None:
        """End this process, with the stacks of all threads in its log, unless it comes back.

        Works also while the main thread is stuck in C code.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.log)

    def others_reach(self, milestone: str, seconds: float) -> bool:
        """Leave a mark at ``milestone`` and wait until all ranks have; ``False`` if they do not."""
        self.mark(milestone)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if len(list(self.folder.glob(f"{milestone}.rank*"))) == self.size:
                return True
            time.sleep(0.02)
        return False

    def mark(self, milestone: str) -> None:
        """Show the other ranks that this one has come to ``milestone``."""
        (self.folder / f"{milestone}.rank{self.rank}").touch()

    def pytest_sessionstart(self) -> None:
        self.watch(START_LIMIT)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.record["failed"][report.nodeid] = report.longreprtext

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Go on only when all ranks have the same tests: others would wait for each other."""
        self.record["tests"] = [item.nodeid for item in session.items]
        self.save()
        if not self.others_reach("collected", START_LIMIT):
            pytest.exit("other ranks did not get as far as this one", returncode=3)
        first = json.loads((self.folder / "rank0.json").read_text())["tests"]
        if first != self.record["tests"]:
            self.record["failed"]["collection"] = f"rank 0 collected other tests: {first}"
            self.save()
            pytest.exit("the ranks collected different tests", returncode=3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        mark = item.get_closest_marker("limit")
        self.watch(mark.args[0] if mark else self.limit)
        print(f"=== {item.nodeid}", file=self.log)
        self.record["running"] = item.nodeid
        self.save()
        result = yield
        milestone = f"test{self.record['tests'].index(item.nodeid)}"
        if item.nodeid in self.record["failed"] and not self.others_reach(milestone, GRACE):
            # They wait for this rank in a collective that it will not join any more.
            print("ending the job: other ranks hang after the failure here", file=self.log)
            self.record["ended_job"] = True
            self.save()
            os._exit(3)
        self.mark(milestone)
        self.record["running"] = None
        self.save()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sections = [f"--- {title}\n{text}" for title, text in report.sections]
            text = "\n".join([report.longreprtext, *sections])
            self.record["failed"].setdefault(report.nodeid, text)
            self.save()
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.record["skipped"][report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_sessionfinish(self) -> None:
        self.watch(EXIT_LIMIT)
        self.record["finished"] = True
        self.save()

    def leave(self) -> int:
        """The exit status, once pytest has cleaned up."""
        self.record["left"] = True
        self.save()
        return 0 if self.record["finished"] else 3


def main(folder: Path, limit: float, arguments: list[str]) -> int:
    """Run pytest as this rank; returns the exit status."""
    plugin = RankPlugin(folder, limit)
    os.dup2(plugin.log.fileno(), 1)
    os.dup2(plugin.log.fileno(), 2)
    # A rank that is ended because of another one tells where it was.
    faulthandler.register(signal.SIGTERM, file=plugin.log, all_threads=True, chain=True)
    # In folders of their own, ranks do not clean up each other's files.
    own = ["--basetemp", str(folder / f"rank{plugin.rank}.tmp")]
    pytest.main(["--capture=tee-sys", "-p", "no:cacheprovider", *own, *arguments], plugins=[plugin])
    return plugin.leave()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
