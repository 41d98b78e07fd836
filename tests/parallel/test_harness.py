"""The harness tells failing, hanging and dying ranks apart, in time, by the right rank."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.parallel.job import Job
from tests.parallel.report import Report

pytestmark = pytest.mark.parallel

CASES = "tests/parallel/cases"
START = 40.0  # generous for the start of a job on a busy machine
LIMIT = 15.0  # for a test that hangs, imports among it


def run(case: str, folder: Path, limit: float = 60.0, job_limit: float = 120.0) -> Report:
    report = Job(2, (f"{CASES}/{case}.py",), limit=limit, job_limit=job_limit).run(folder)
    assert not report.passed
    return report


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The jobs that go wrong, three at a time, as most of their time is somebody's patience."""
    jobs: dict[str, dict] = {
        "test_one_rank_hangs, job": {"limit": 1000, "job_limit": 25},
        "test_one_rank_leaves": {},
        "test_one_rank_hangs": {"limit": LIMIT},
        "test_one_rank_fails_at_exit": {},
        "test_one_rank_crashes": {},
        "test_ranks_differ": {},
        "test_nothing_of_this_name": {},
    }
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(run, name.split(",")[0], tmp_path_factory.mktemp("job"), **limits)
            for name, limits in jobs.items()
        }


def no_rank_left(report: Report) -> bool:
    pids = [rank["pid"] for rank in report.ranks if rank]
    time.sleep(0.5)  # the launcher's shells need a moment to collect them
    return not any(
        str(report.folder).encode() in path.read_bytes()
        for path in (Path(f"/proc/{pid}/cmdline") for pid in pids)
        if path.exists()
    )


def test_failing_rank_is_shown_alone_and_other_tests_go_on(tmp_path):
    report = run("test_one_rank_fails", tmp_path)
    assert report.summary().startswith("1 failed, 2 passed on 2 ranks")
    assert list(report.failed) == [1]
    text = report.details()
    assert "rank 1 is wrong" in text
    assert "rank 1 says hello" in text
    assert "rank 0 says hello" not in text


@pytest.mark.extended
def test_failure_ends_a_job_whose_other_ranks_wait(reports):
    report = reports["test_one_rank_leaves"].result()
    assert report.seconds < START + 10
    text = report.details()
    assert "rank 1 never joins" in text
    assert list(report.failed) == [1], "what then broke on rank 0 is no failure of its own"
    assert no_rank_left(report)


@pytest.mark.extended
def test_failure_after_the_last_test_is_shown(reports):
    report = reports["test_one_rank_fails_at_exit"].result()
    assert "1 passed" in report.summary()
    assert "rank 1 cannot clean up" in report.details()


@pytest.mark.extended
def test_hanging_rank_ends_within_the_limit_with_its_stack(reports):
    report = reports["test_one_rank_hangs"].result()
    assert report.seconds < START + LIMIT
    assert "1 unfinished" in report.summary()
    rank_1 = report.details().split("---- rank 1")[1]
    assert "sleep_for_ever" in rank_1
    assert no_rank_left(report)


@pytest.mark.extended
def test_job_limit_catches_what_the_limit_of_a_test_does_not(reports):
    report = reports["test_one_rank_hangs, job"].result()
    assert report.status is None
    assert report.seconds < 25 + 15
    assert "sleep_for_ever" in report.details()
    assert "time limit" in report.details()
    assert no_rank_left(report)


@pytest.mark.extended
def test_dying_rank(reports):
    report = reports["test_one_rank_crashes"].result()
    rank_1 = report.details().split("---- rank 1")[1]
    assert "rank 1 is about to go" in rank_1
    assert "Aborted" in rank_1


@pytest.mark.extended
def test_ranks_must_collect_the_same(reports):
    report = reports["test_ranks_differ"].result()
    assert "rank 0 collected other tests" in report.details()


@pytest.mark.extended
def test_no_tests_is_a_failure(reports):
    report = reports["test_nothing_of_this_name"].result()
    assert report.summary().startswith("no tests")
    assert "file or directory not found" in report.details()
