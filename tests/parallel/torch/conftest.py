import pytest


@pytest.fixture(scope="session")
def hvd():
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()
