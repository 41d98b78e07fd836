"""What a job found, told so that the first screen shows the reason of a failure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

TAIL = 60  # lines of a log that are shown


def tail(path: Path, after: str = "") -> str:
    """The last lines of a log, from the last occurrence of ``after`` on."""
    text = path.read_text(errors="replace") if path.exists() else ""
    start = max(text.rfind(after), 0) if after else 0
    lines = text[start:].strip().splitlines()
    return "\n".join(lines[-TAIL:])


@dataclass(frozen=True)
class Report:
    """Findings of all ranks, ``None`` for a rank that never started."""

    folder: Path
    ranks: list[dict | None]
    status: int | None  # of the launcher; None: it ran into the job's time limit
    seconds: float

    @classmethod
    def read(cls, folder: Path, np: int, status: int | None, seconds: float) -> Report:
        """Collect what the ranks left in ``folder``."""
        files = [folder / f"rank{rank}.json" for rank in range(np)]
        ranks = [json.loads(file.read_text()) if file.exists() else None for file in files]
        return cls(folder, ranks, status, seconds)

    @property
    def tests(self) -> list[str]:
        """All tests of the job."""
        return next((rank["tests"] for rank in self.ranks if rank and rank["tests"]), [])

    @property
    def failed(self) -> dict[int, dict[str, str]]:
        """Failures with their text, of the ranks that have any.

        When a rank ends the job, collectives break on the others: that is a consequence.
        """
        cause = next((rank["running"] for rank in self.ranks if rank and rank["ended_job"]), None)
        failed = {
            n: {t: text for t, text in rank["failed"].items() if t != cause or rank["ended_job"]}
            for n, rank in enumerate(self.ranks)
            if rank
        }
        return {n: failures for n, failures in failed.items() if failures}

    @property
    def skipped(self) -> dict[str, str]:
        """Tests that all ranks skipped, with the reason."""
        first = self.ranks[0]["skipped"] if self.ranks[0] else {}
        return {
            test: reason
            for test, reason in first.items()
            if all(rank and test in rank["skipped"] for rank in self.ranks)
        }

    @property
    def passed(self) -> bool:
        """Every rank came to its end, ran something, and nothing failed."""
        finished = all(rank and rank["finished"] for rank in self.ranks)
        return self.status == 0 and finished and not self.failed and bool(self.tests)

    def summary(self) -> str:
        """Counts, each test counted once whatever the number of ranks."""
        failed = {test for failures in self.failed.values() for test in failures}
        stuck = {rank["running"] for rank in self.ranks if rank} - {None} - failed
        skipped = self.skipped
        counts = {
            "failed": len(failed),
            "unfinished": len(stuck),
            "passed": len(self.done() - failed - stuck - set(skipped)),
            "skipped": len(skipped),
        }
        told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{told or 'no tests'} on {len(self.ranks)} ranks in {self.seconds:.1f} s"

    def done(self) -> set[str]:
        """Tests that every rank has come to the end of."""
        return {
            test
            for index, test in enumerate(self.tests)
            if len(list(self.folder.glob(f"test{index}.rank*"))) == len(self.ranks)
        }

    def failures(self) -> list[str]:
        """One text per test and error; ranks with the same error are named, not repeated."""
        groups: dict[tuple[str, str], list[int]] = {}
        for n, failures in self.failed.items():
            for test, text in failures.items():
                error = [line for line in text.splitlines() if line.startswith("E ")]
                groups.setdefault((test, "\n".join(error) or text), []).append(n)
        return [
            f"---- rank {', '.join(map(str, ranks))}: {test}\n{self.failed[ranks[0]][test]}"
            for (test, _), ranks in groups.items()
        ]

    def details(self) -> str:
        """Failures of the ranks that have them; where none has, what each rank was doing."""
        parts = self.failures()
        unfinished = {n: rank for n, rank in enumerate(self.ranks) if not rank or rank["running"]}
        for n, rank in unfinished.items():
            if n in self.failed:
                continue
            test = rank["running"] if rank else None
            where = f"did not come to the end of {test}" if test else "did not start"
            if self.failed:  # the failure is the reason, stacks would hide it
                parts.append(f"---- rank {n} {where}")
            else:
                log = tail(self.folder / f"rank{n}.log", f"=== {test}" if test else "")
                parts.append(f"---- rank {n} {where}\n{log}")
        if not parts:
            parts += [
                f"---- rank {n}\n{tail(self.folder / f'rank{n}.log')}"
                for n, rank in enumerate(self.ranks)
                if rank and (not rank["finished"] or not rank["left"] or not self.tests)
            ]
            parts.append(f"---- launcher\n{tail(self.folder / 'launcher.log')}")
        end = "ran into the job's time limit" if self.status is None else f"status {self.status}"
        return "\n\n".join([*parts, f"launcher: {end}; logs: {self.folder}"])
