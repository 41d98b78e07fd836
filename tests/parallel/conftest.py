"""Tests of ``torch/``, ``tensorflow/``, ``cuda…/`` belong inside a job: `test_jobs` starts it."""

import pytest

from .rank import rank_and_size

SIZE = rank_and_size()[1]

collect_ignore_glob = ["elastic/*", "frameworks/*"]
if SIZE == 1:
    jobs = ("torch", "tensorflow", "cuda", "cuda_tensorflow", "timeline", "cases")
    collect_ignore_glob += [f"{job}/*" for job in jobs]


def pytest_collection_modifyitems(items):
    for item in items:
        mark = item.get_closest_marker("np")
        if mark and SIZE not in mark.args:
            sizes = " or ".join(map(str, mark.args))
            item.add_marker(pytest.mark.skip(reason=f"for {sizes} ranks, not {SIZE}"))
