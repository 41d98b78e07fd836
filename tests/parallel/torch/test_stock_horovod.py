"""What this project relies on in Horovod itself, for torch."""

import pytest
import torch


def test_allreduce_averages(hvd):
    mine = torch.arange(10.0) * (hvd.rank() + 1)
    mean = hvd.allreduce(mine, name="stock.average")
    torch.testing.assert_close(mean, torch.arange(10.0) * (hvd.size() + 1) / 2)


def test_int32_sums_wrap_nothing(hvd):
    # Packed words use all 32 bits: the sum must be exact up to both ends.
    low, high = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    share = torch.tensor([-(-low // hvd.size()), high // hvd.size(), hvd.rank()], dtype=torch.int32)
    total = hvd.allreduce(share, op=hvd.Sum, name="stock.int32")
    ranks = range(hvd.size())
    expected = [-(-low // hvd.size()) * hvd.size(), high // hvd.size() * hvd.size(), sum(ranks)]
    assert total.dtype == torch.int32
    assert total.tolist() == expected


def test_integer_max(hvd):
    top = hvd.allreduce(torch.tensor([hvd.rank(), -hvd.rank()]).int(), op=hvd.Max, name="stock.max")
    assert top.tolist() == [hvd.size() - 1, 0]


def test_alltoall_of_bytes(hvd):
    splits = torch.arange(1, hvd.size() + 1, dtype=torch.int32)
    sent = torch.cat([torch.full((int(n),), hvd.rank(), dtype=torch.uint8) for n in splits])
    received, sizes = hvd.alltoall(sent, splits=splits, name="stock.alltoall")
    assert received.tolist() == [r for r in range(hvd.size()) for _ in range(hvd.rank() + 1)]
    assert sizes.tolist() == [hvd.rank() + 1] * hvd.size()


def test_allgather_of_unequal_lengths(hvd):
    mine = torch.full((hvd.rank() + 1,), hvd.rank(), dtype=torch.uint8)
    everything = hvd.allgather(mine, name="stock.allgather")
    assert everything.tolist() == [r for r in range(hvd.size()) for _ in range(r + 1)]


def test_optimizer_keeps_replicas_identical(hvd):
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 3)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 20), float(hvd.rank() + step))).square().mean().backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = hvd.allgather(weights.unsqueeze(0), name="stock.replicas")
    assert all(torch.equal(row, weights) for row in everyone)


@pytest.mark.np(3)
def test_process_set_of_two_out_of_three(hvd):
    pair = hvd.add_process_set([0, 2])
    try:
        if pair.included():
            total = hvd.allreduce(
                torch.tensor([float(hvd.rank())]), op=hvd.Sum, process_set=pair, name="stock.pair"
            )
            assert total.tolist() == [2.0]
    finally:
        hvd.remove_process_set(pair)
