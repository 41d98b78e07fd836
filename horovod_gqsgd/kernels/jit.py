"""How kernels are compiled: options, and a cache on disk that cannot go stale."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

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


class _Files(IndexDataCacheFile):
    """A file per signature, named by all that the code in it depends on.

    Numba's own numbers them and keeps an index. Ranks that compile at the same time take the same
    number for different signatures, and then run each other's code.
    """

    def save(self, key, data):
        self._save_data(self._name(key), data)

    def load(self, key):
        with contextlib.suppress(FileNotFoundError):
            return self._load_data(self._name(key))
        return None

    def _name(self, key: Any) -> str:
        digest = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode())
        return f"{Path(self._index_name).stem}.{digest.hexdigest()[:32]}.nbc"


class _KernelCache(FunctionCache):
    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, _STAMP)


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
