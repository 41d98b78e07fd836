"""Global-QSGD gradient compression for Horovod."""

__version__ = "0.1.0"
