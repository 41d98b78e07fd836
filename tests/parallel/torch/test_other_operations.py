"""What Horovod does besides allreduce is its own, whether a tensor is marked or not."""

import pytest
import torch
from horovod.torch.compression import Compression

from horovod_gqsgd.torch import GlobalQSGD, statistics
from tests.parallel.torch.specification import gradient


def both(operation):
    """Result and gradient of ``operation(compression)``, with ours and without any: the same."""
    before = statistics.tensors
    for ours, stock in zip(operation(GlobalQSGD), operation(Compression.none), strict=True):
        assert type(ours) is torch.Tensor
        assert torch.equal(ours, stock)
    assert statistics.tensors == before


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("factors", [{}, {"prescale_factor": 0.5, "postscale_factor": 3.0}])
def test_reducescatter(hvd, op, factors):
    def operation(compression):
        mine = gradient(hvd.rank(), 12, 300).requires_grad_()
        options = {"op": getattr(hvd, op), "compression": compression, **factors}
        share = hvd.reducescatter(mine, name=f"rs.{op}.{factors}", **options)
        share.backward(gradient(hvd.rank(), *share.shape, seed=1))
        return share.detach(), mine.grad

    both(operation)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_grouped_reducescatter(hvd, op):
    """Of which one member is not marked, and the last is small."""

    def operation(compression):
        mine = [gradient(hvd.rank(), 12, size, seed=size).requires_grad_() for size in (300, 2)]
        counts = torch.full((4, 3), hvd.rank(), dtype=torch.int32)
        options = {"op": getattr(hvd, op), "compression": compression}
        members = [mine[0], counts, mine[1]] if op == "Sum" else mine
        shares = hvd.grouped_reducescatter(members, name=f"grs.{op}", **options)
        floats = [share for share in shares if share.is_floating_point()]
        torch.cat([share.flatten() for share in floats]).square().sum().backward()
        return *(share.detach() for share in shares), *(tensor.grad for tensor in mine)

    both(operation)


@pytest.mark.filterwarnings("ignore:Parameter `average`")  # of Horovod, to itself
@pytest.mark.parametrize(
    "operation", ["allgather", "grouped_allgather", "alltoall", "broadcast", "broadcast_"]
)
def test_marked_tensors(hvd, operation):
    """As of a user who compresses by hand."""

    def run(compression):
        mine = gradient(hvd.rank(), 12, 300)
        if operation != "broadcast_":
            mine.requires_grad_()
        marked, _ctx = compression.compress(mine)
        more = {"root_rank": 1} if "broadcast" in operation else {}
        given = [marked, marked] if "grouped" in operation else marked
        result = getattr(hvd, operation)(given, name=f"{operation}.marked", **more)
        result = result[1] if "grouped" in operation else result
        if operation == "broadcast_":
            return (mine,)
        result.backward(gradient(0, *result.shape, seed=1))
        return result.detach(), mine.grad

    both(run)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.ones(40, 60).t(), "required to be contiguous"),
        (torch.ones(40, 60).bfloat16(), "BFloat16Tensor is not supported"),
    ],
    ids=["strided", "bfloat16"],
)
def test_what_horovod_refuses(hvd, tensor, said):
    for compression in (Compression.none, GlobalQSGD):
        with pytest.raises(ValueError, match=said):
            hvd.reducescatter(tensor, name=said, compression=compression)
        with pytest.raises(ValueError, match=said):
            hvd.grouped_reducescatter([tensor], name=said, compression=compression)
