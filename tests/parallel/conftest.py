"""Tests of ``torch/`` and ``tensorflow/`` belong inside a job: `test_jobs` starts it."""

from .rank import rank_and_size

if rank_and_size()[1] == 1:
    collect_ignore_glob = ["torch/*", "tensorflow/*", "cases/*"]
