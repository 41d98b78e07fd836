"""Tests on a real GPU: `make test-gpu`. Without one they are skipped, with the reason."""

from pathlib import Path

import pytest

from horovod_gqsgd.torch.device import missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Pytest hands over the tests of the whole session."""
    reason = missing()
    if reason:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu():
    """Kernels through the adapter's own device, on arrays that come from NumPy and go back."""
    from tests.gpu.device import Gpu

    return Gpu()
