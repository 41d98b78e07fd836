"""Promises of the project, as the report of `make bench` checks them."""

from typing import NamedTuple


class Target(NamedTuple):
    """A promise, and what was measured."""

    what: str
    wanted: str
    measured: float
    kept: bool
    bound: float | None = None  # that no contender with so many bytes could pass


def at_most(what: str, wanted: float, measured: float) -> Target:
    """A promise that something stays small."""
    return Target(what, f"≤ {wanted:.3g}", measured, measured <= wanted)
