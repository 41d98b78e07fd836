"""The one exception of this package: what went wrong, and what to do about it."""

from __future__ import annotations


class Problem(Exception):
    """A foreseen failure: ``what`` happened, and the ``fix`` in the user's hands."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix
