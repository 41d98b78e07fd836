"""How kernels are compiled: options, and a cache on disk that cannot go stale."""

import contextlib
import hashlib
from pathlib import Path

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

#: Elements that one task of a parallel kernel handles; below SERIAL elements threads do not pay.
CHUNK = 65_536
SERIAL = 100_000

_HERE = Path(__file__).parent


def _digest() -> bytes:
    """Hash of all kernel sources.

    Numba stamps a cached function with its own file alone, although it contains code inlined from
    others: an edit of `scalars` would go unnoticed.
    """
    digest = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


_STAMP = _digest()


class _Stamped:
    def get_source_stamp(self) -> bytes:
        return _STAMP


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [  # noqa: RUF012
        type(locator.__name__, (_Stamped, locator), {})
        for locator in CompileResultCacheImpl._locator_classes
    ]


class _KernelCache(FunctionCache):
    _impl_class = _CacheImpl


def _compile(function, **options):
    dispatcher = numba.njit(nogil=True, error_model="numpy", boundscheck=False, **options)(function)
    with contextlib.suppress(RuntimeError):  # no folder is writable: compile in every process
        dispatcher._cache = _KernelCache(function)
    return dispatcher


def serial(function):
    """Compile a loop body: no GIL, no bounds checks, IEEE division."""
    return _compile(function)


def parallel(function):
    """Compile a thin ``prange`` driver around serial bodies."""
    return _compile(function, parallel=True)


def choose_threading_layer() -> None:
    """Ask Numba for a thread-safe pool, unless the user has asked for another.

    The layer that needs nothing installed, ``workqueue``, aborts the process when two Python
    threads call kernels, as autograd's threads do.
    """
    if numba.config.THREADING_LAYER == "default":
        numba.config.THREADING_LAYER = "threadsafe"
