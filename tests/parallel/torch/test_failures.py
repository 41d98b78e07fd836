"""What goes wrong is told on every rank, and leaves nothing behind that a retry would meet."""

import gc

import pytest
import torch

from horovod_gqsgd.torch import DisagreementError, GlobalQSGD
from horovod_gqsgd.torch.message import HostMessage
from horovod_gqsgd.transports import horovod_torch as native


@pytest.mark.parametrize("case", ["bits", "elements"])
def test_ranks_that_disagree_on_a_group_of_many_tensors(hvd, case):
    """However long the list of its tensors."""
    odd = hvd.rank() == 0
    sizes = [1030] * 200
    if case == "elements" and odd:
        sizes[150:152] = [1029, 1031]
    compression = GlobalQSGD(bits=6 if case == "bits" and odd else 8)
    said = {
        "bits": "bits is 6 on rank 0; 8 on rank",
        "elements": r"elements is 206000 in 200 tensors, digest \w+ on rank 0; 206000 in 200",
    }[case]
    with pytest.raises(DisagreementError, match=said):
        hvd.grouped_allreduce(
            [torch.ones(size) for size in sizes], name=f"many.{case}", compression=compression
        )
    clean = hvd.grouped_allreduce(
        [torch.ones(1030)] * 200, name=f"many.{case}", compression=GlobalQSGD
    )
    assert all(torch.equal(tensor, torch.ones(1030)) for tensor in clean)


@pytest.mark.np(3)
def test_errors_in_a_process_set_name_the_ranks_of_the_job(hvd):
    some = hvd.add_process_set([1, 2])
    try:
        if some.included():
            compression = GlobalQSGD(bits=6 if hvd.rank() == 1 else 8)
            options = {"name": "set.failure", "process_set": some, "compression": compression}
            with pytest.raises(DisagreementError, match="bits is 6 on rank 1; 8 on rank 2"):
                hvd.allreduce(torch.ones(2048), **options)
    finally:
        hvd.remove_process_set(some)


@pytest.mark.parametrize("other", ["none", "inf", "levels"])
@pytest.mark.parametrize("grouped", [False, True])
def test_norms_that_are_sums_wait_for_agreement(hvd, other, grouped):
    """A rank without them is told, nothing is left under way, and a retry and a join work."""
    ours = GlobalQSGD(norm=2)
    theirs = hvd.Compression.none if other == "none" else GlobalQSGD(norm="inf")
    said, size = "Mismatched", 2048
    if other == "levels":  # a roll of n ranks here, n norms there: Horovod sees no difference
        ours = GlobalQSGD(levels="exponential", norm=2, min_size=1)
        theirs, said, size = GlobalQSGD(block=128, min_size=1), "levels is", 128 * hvd.size()
    name = f"sums.{other}.{grouped}"

    def reduce(compression):
        options = {"name": name, "compression": compression}
        if grouped:
            return hvd.grouped_allreduce([torch.ones(size), torch.tensor(1)], **options)[0]
        return hvd.allreduce(torch.ones(size), **options)

    for _ in range(2):
        with pytest.raises((ValueError, hvd.mpi_ops.HorovodInternalError), match=said):
            reduce(ours if hvd.rank() == 0 else theirs)
    assert abs(reduce(ours).mean() - 1) < 0.2
    hvd.join()
    assert abs(reduce(ours).mean() - 1) < 0.2


@pytest.mark.parametrize("field", ["block", "levels", "norm"])
def test_groups_whose_heads_differ_in_length(hvd, field):
    """From the first step on, although Horovod tells of one member of a group only."""
    odd = {"block": 128, "levels": "exponential", "norm": 2}
    compression = GlobalQSGD(**{field: odd[field]}) if hvd.rank() == 0 else GlobalQSGD
    mine = [torch.full((4096,), 1.0 + hvd.rank()), torch.ones(3), torch.ones(1)]
    for _ in range(3):
        with pytest.raises(DisagreementError, match="Mismatched"):
            hvd.grouped_allreduce(mine, name=f"heads.{field}", compression=compression)
    first, *_ = hvd.grouped_allreduce(mine, name=f"heads.{field}", compression=GlobalQSGD)
    assert (first - (hvd.size() + 1) / 2).abs().max() < 0.1


@pytest.mark.parametrize("name", [None, "small.shapes"])
def test_small_tensors_that_differ_in_shape(hvd, name):
    """Named or not; Horovod's table of handles is as before."""
    before = len(hvd.mpi_ops._handle_map)
    options = {"name": name, "compression": GlobalQSGD}
    with pytest.raises(DisagreementError, match=f"{name or 'noname'}.* tensor shape"):
        hvd.allreduce(torch.ones(3 + hvd.rank()), **options)
    assert len(hvd.mpi_ops._handle_map) == before
    assert hvd.allreduce(torch.ones(3), **options).sum() == 3


@pytest.mark.parametrize("name", [None, "small.lost"])
@pytest.mark.parametrize("size", [3, 3000])
def test_a_lost_connection_is_what_elastic_jobs_wait_for(hvd, monkeypatch, name, size):
    """`HorovodInternalError`, for small tensors as for others."""
    wait = native.original["horovod_torch_wait_and_clear"]

    def lose(handle):
        wait(handle)
        raise RuntimeError("Connection closed by peer")

    before = len(hvd.mpi_ops._handle_map)
    with monkeypatch.context() as lost:
        lost.setitem(native.original, "horovod_torch_wait_and_clear", lose)
        with pytest.raises(hvd.mpi_ops.HorovodInternalError, match="Connection closed"):
            hvd.allreduce(torch.ones(size), name=name, compression=GlobalQSGD)
    assert len(hvd.mpi_ops._handle_map) == before
    again = hvd.allreduce(torch.ones(size), name=name, compression=GlobalQSGD)
    assert torch.equal(again, torch.ones(size))


def test_names_that_change_with_every_step_leave_no_buffers(hvd):
    def kept():
        gc.collect()
        buckets = [each for each in gc.get_objects() if type(each) is HostMessage]
        return [each.transport.name for each in buckets if "leak" in each.transport.name]

    for step in range(30):
        hvd.allreduce(torch.ones(2048), name=f"leak.{step}", compression=GlobalQSGD)
    assert kept() == []
    for _ in range(3):
        hvd.allreduce(torch.ones(2048), name="no leak", compression=GlobalQSGD)
    assert kept() == ["no leak"]
