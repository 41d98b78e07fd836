import torch


def test_rank_0_waits_for_rank_1(hvd):
    assert hvd.rank() != 1, "rank 1 never joins"
    hvd.allreduce(torch.ones(1), name="lonely")
