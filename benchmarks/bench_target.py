"""Promises of the project, as the report of `make bench` checks them."""

from typing import NamedTuple


class Target(NamedTuple):
    """A promise, what was measured, and what `bare` messages gave in the same rounds."""

    what: str
    wanted: str
    measured: float
    kept: bool
    bound: float | None = None
    missed_by_bare: bool = False

    @property
    def verdict(self) -> str:
        """For the page."""
        if self.kept:
            return "yes"
        return "**no**, nor does `bare`" if self.missed_by_bare else "**no**"


def at_most(what: str, wanted: float, measured: float, bound: float | None = None) -> Target:
    """A promise that something stays small."""
    missed = bound is not None and bound > wanted
    return Target(what, f"≤ {wanted:.3g}", measured, measured <= wanted, bound, missed)


def at_least(what: str, wanted: float, measured: float, bound: float | None = None) -> Target:
    """A promise that something is large."""
    missed = bound is not None and bound < wanted
    return Target(what, f"≥ {wanted:.3g}", measured, measured >= wanted, bound, missed)
