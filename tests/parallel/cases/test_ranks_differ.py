import pytest

from tests.parallel.rank import rank_and_size


@pytest.mark.parametrize("case", range(rank_and_size()[0] + 1))
def test_more_cases_on_later_ranks(case):
    pass
