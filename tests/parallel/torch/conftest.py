import pytest


@pytest.fixture(scope="session")
def hvd():
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


@pytest.fixture(params=["linear", "exponential"])
def compression(request):
    """Both level sets, for what must hold with either."""
    from horovod_gqsgd.torch import GlobalQSGD

    return GlobalQSGD if request.param == "linear" else GlobalQSGD(levels="exponential")
