"""What goes wrong is told on every rank, and leaves nothing behind that a retry would meet."""

import pytest
import torch

from horovod_gqsgd.torch import DisagreementError, GlobalQSGD


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
