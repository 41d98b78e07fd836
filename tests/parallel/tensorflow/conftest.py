import pytest


@pytest.fixture(scope="session")
def hvd():
    import horovod.tensorflow as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


@pytest.fixture(params=["eager", "graph"])
def traced(request):
    """Makes a function run as it is, or as a graph."""
    import tensorflow as tf

    return tf.function if request.param == "graph" else lambda function: function


@pytest.fixture(autouse=True)
def first_step(request):
    """Counters of steps belong to names; every test begins at 0."""
    if "hvd" in request.fixturenames:
        from horovod_gqsgd.tensorflow.memory import _memories

        _memories.clear()
