"""Tests that run on several ranks at once.

A start of horovodrun costs seconds, so pytest runs *inside* the job: every rank runs the same
tests in the same order, in one job per framework, launcher and world size.

``torch/``, ``tensorflow/``
    the tests, written for any number of ranks; a test that needs certain world sizes says
    ``@pytest.mark.np(3)``, one that needs longer than a minute ``@pytest.mark.limit(120)``
``cuda/``, ``cuda_tensorflow/``, ``timeline/``
    those that need Numba's CUDA simulator, or a GPU, and Horovod's timeline
``test_jobs.py``
    the jobs that ``make test`` and ``make test-rest`` run
``python -m tests.parallel --np 2 tests/parallel/torch/test_x.py -k name``
    one job by hand (``make ptest`` for short); everything after the options goes to pytest
``job.py``, ``rank.py``, ``report.py``
    the harness: start a job, run one rank of it, tell what happened
"""
