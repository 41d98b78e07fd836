"""Test files that go wrong on purpose; `test_harness` runs them and looks at the outcome."""

import pytest


@pytest.fixture(scope="session")
def hvd():
    import horovod.torch as hvd

    hvd.init()
    return hvd
