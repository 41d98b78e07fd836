"""Trainings that race to the same AUC: their state, from the events of showcase.py."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Runner:
    """One training so far; ``curve`` has steps, seconds and AUC of every validation."""

    label: str
    step: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    bytes_per_step: float = 0.0

    @property
    def auc(self) -> float | None:
        """Of the last validation."""
        return self.curve[-1][2] if self.curve else None

    @property
    def step_ms(self) -> float:
        """The mean of all steps."""
        return 1e3 * self.seconds / max(self.step, 1)

    def seconds_to(self, target: float) -> float | None:
        """When AUC passed the target, between validations on a straight line; None if never.

        >>> Runner("none", curve=[(4, 2.0, 0.5), (8, 4.0, 0.75)]).seconds_to(0.625)
        3.0
        """
        earlier, before = 0.0, 0.5  # what guessing reaches
        for _, seconds, auc in self.curve:
            if auc >= target:
                return earlier + (seconds - earlier) * (target - before) / (auc - before)
            earlier, before = seconds, auc
        return None


@dataclass
class Race:
    """All of them, by the compression's name in events; ``labels`` are for people."""

    labels: dict[str, str]
    best: float = 0.0
    target: float = 0.0
    steps: int = 0
    turn: str | None = None  # whose it is
    began: float = 0.0  # by the spectator's clock

    def __post_init__(self) -> None:
        self.runners = {name: Runner(label) for name, label in self.labels.items()}

    def follow(self, event: dict[str, Any]) -> None:
        """Take in what has happened."""
        what = dict(event)
        getattr(self, f"_{what.pop('event')}")(**what)

    def _begin(self, best: float, target: float, steps: int) -> None:
        self.best, self.target, self.steps = best, target, steps

    def _step(self, compression: str, step: int, seconds: float) -> None:
        if self.turn is None:
            self.began = time.monotonic() - seconds
        self.turn = compression
        runner = self.runners[compression]
        runner.step, runner.seconds = step, seconds

    def _auc(self, compression: str, step: int, seconds: float, auc: float) -> None:
        self.runners[compression].curve.append((step, seconds, auc))

    def _end(self, compression: str, bytes_per_step: float) -> None:
        self.runners[compression].bytes_per_step = bytes_per_step

    def seconds_left(self) -> float | None:
        """At everybody's pace so far, with what passes between steps; None before all have one."""
        runners = self.runners.values()
        trained = sum(runner.seconds for runner in runners)
        if not all(runner.step for runner in runners):
            return None
        left = sum((self.steps - runner.step) * runner.step_ms / 1e3 for runner in runners)
        return left * (time.monotonic() - self.began) / trained

    def results(self, network: str) -> list[dict[str, Any]]:
        """Ready for JSON."""
        return [
            {
                "label": runner.label, "step_ms": round(runner.step_ms, 1),
                "seconds_to_target": runner.seconds_to(self.target), "auc": runner.auc,
                "bytes_per_step": round(runner.bytes_per_step), "network": network,
            }
            for runner in self.runners.values()
        ]  # fmt: skip
