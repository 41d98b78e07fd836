"""Global-QSGD for ``horovod.torch``.

>>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
...                                      compression=GlobalQSGD)  # doctest: +SKIP
"""

from horovod_gqsgd.agreement import DisagreementError, JoinedError, ReductionError
from horovod_gqsgd.reductions import register_reduction
from horovod_gqsgd.statistics import Statistics, statistics
from horovod_gqsgd.torch import seam
from horovod_gqsgd.torch.compressor import GlobalQSGD

__all__ = [
    "DisagreementError",
    "GlobalQSGD",
    "JoinedError",
    "ReductionError",
    "Statistics",
    "register_reduction",
    "statistics",
]

seam.install()
