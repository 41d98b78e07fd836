"""``python -m tests.unit``: the unit tests as the image runs them and `make test` does."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], "tests/unit"]))
