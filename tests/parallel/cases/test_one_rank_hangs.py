import time

import torch


def sleep_for_ever():
    time.sleep(3600)


def test_rank_1_sleeps(hvd):
    if hvd.rank() == 1:
        sleep_for_ever()
    hvd.allreduce(torch.ones(1), name="lonely")
