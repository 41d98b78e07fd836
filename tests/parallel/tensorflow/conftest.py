import pytest


@pytest.fixture(scope="session")
def hvd():
    import horovod.tensorflow as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()
