"""Promises of the project, as the report of `make bench` checks them."""

from typing import NamedTuple


class Target(NamedTuple):
    """A promise, what was measured, and what `bare` messages gave in the same rounds."""

    what: str
    wanted: str
    measured: float
    kept: bool
    bound: float | None = None
    out_of_reach: bool = False  # bare messages do not keep it either

    @property
    def verdict(self) -> str:
        """For the page."""
        if self.kept:
            return "yes"
        return "**no**, nor does `bare`" if self.out_of_reach else "**no**"


def at_most(what: str, wanted: float, measured: float, bound: float | None = None) -> Target:
    """A promise that something stays small."""
    beyond = bound is not None and bound > wanted
    return Target(what, f"≤ {wanted:.3g}", measured, measured <= wanted, bound, beyond)


def at_least(what: str, wanted: float, measured: float, bound: float | None = None) -> Target:
    """A promise that something is large."""
    beyond = bound is not None and bound < wanted
    return Target(what, f"≥ {wanted:.3g}", measured, measured >= wanted, bound, beyond)
