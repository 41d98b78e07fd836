"""Global-QSGD for ``horovod.tensorflow``, ``horovod.tensorflow.keras`` and ``horovod.keras``.

>>> optimizer = hvd.DistributedOptimizer(optimizer, compression=GlobalQSGD)  # doctest: +SKIP
"""

from horovod_gqsgd.agreement import DisagreementError, JoinedError, ReductionError
from horovod_gqsgd.reductions import register_reduction
from horovod_gqsgd.statistics import Statistics, statistics
from horovod_gqsgd.tensorflow import seam
from horovod_gqsgd.tensorflow.compressor import GlobalQSGD

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
