import pytest


def test_all_is_well(hvd):
    hvd.size()


@pytest.fixture(scope="session", autouse=True)
def on_the_way_out(hvd, pytestconfig):
    def clean_up():
        if rank == 1:
            raise OSError("rank 1 cannot clean up")

    rank = hvd.rank()
    pytestconfig.add_cleanup(clean_up)
