"""Promises of the project, as the report of `make bench` checks them."""

from typing import NamedTuple


class Target(NamedTuple):
    """A promise, and what was measured."""

    what: str
    wanted: str
    measured: float
    kept: bool
    bound: float | None = None  # that the same messages do not pass, were the kernels free


def at_most(what: str, wanted: float, measured: float, bound: float | None = None) -> Target:
    """A promise that something stays small."""
    return Target(what, f"≤ {wanted:.3g}", measured, measured <= wanted, bound)
