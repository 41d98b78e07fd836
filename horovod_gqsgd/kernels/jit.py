"""How kernels are compiled: options, and a cache on disk that cannot go stale."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic

#: Elements that one task of a parallel kernel handles; below SERIAL elements threads do not pay.
CHUNK = 65_536
SERIAL = 100_000

#: Modules of the package that kernels import, and those that these import.
BAKED_IN = (
    "codecs/base", "codecs/exponential", "codecs/linear", "dither", "lanes", "norms", "reductions",
    "sections", "shards",
)  # fmt: skip

_HERE = Path(__file__).parent


def _digest() -> bytes:
    """Hash of all kernel sources, and of those that kernels have constants of.

    Numba stamps a cached function with its own file alone, although it contains code inlined from
    others: an edit of `scalars` would go unnoticed.
    """
    digest = hashlib.sha256()
    constants = [_HERE.parent / f"{name}.py" for name in BAKED_IN]
    for path in sorted([*_HERE.rglob("*.py"), *constants]):
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


#: CPUs whose clock falls when a core multiplies vectors of 512 bits.
SLOWED_BY_WIDE_VECTORS = ("skylake-avx512", "cascadelake", "cooperlake")


@intrinsic
def wide(typing_context):
    """Let loops of the function it is called in use 512-bit vectors, where the CPU has them.

    LLVM stays at 256 bits unless told otherwise. Loops that compute rather than load and store,
    as those that draw random numbers, take a quarter to a third less time.
    """

    def codegen(context, builder, signature, arguments):
        if binding.get_host_cpu_name() not in SLOWED_BY_WIDE_VECTORS:
            # past a check that knows no attributes with values
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


def choose_threading_layer() -> None:
    """Ask Numba for a thread-safe pool, unless the user has asked for another.

    The layer that needs nothing installed, ``workqueue``, aborts the process when two Python
    threads call kernels, as autograd's threads do.
    """
    if numba.config.THREADING_LAYER == "default":
        numba.config.THREADING_LAYER = "threadsafe"
