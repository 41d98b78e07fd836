import torch


def test_before(hvd):
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="before").item() == hvd.size()


def test_fails_on_rank_1(hvd):
    print(f"rank {hvd.rank()} says hello")
    assert hvd.rank() != 1, "rank 1 is wrong"


def test_after(hvd):
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").item() == hvd.size()
