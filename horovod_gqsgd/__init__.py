"""Global-QSGD gradient compression for Horovod.

The compressor itself is in `horovod_gqsgd.torch` and `horovod_gqsgd.tensorflow`; here is what
belongs to no framework. Nothing is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod_gqsgd.config import Config
    from horovod_gqsgd.reductions import register_reduction

__version__ = "0.1.0"
__all__ = ["Config", "register_reduction"]

_HOME = {"Config": "config", "register_reduction": "reductions"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
