"""Every kernel of the catalogue as PTX and machine code for every architecture, kept on disk.

Files under output/cuda are keyed by a hash of the sources and tools that they come from, so that
they cannot go stale.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from tests.cuda_code import tools
from tests.cuda_code.tools import ASSEMBLER, Resources, assemble

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "output" / "cuda"

ARCHITECTURES = ("70", "75", "80", "86", "89", "90", "100")


@dataclass(frozen=True)
class Program:
    """One kernel, by architecture."""

    ptx: dict[str, str]
    resources: dict[str, Resources]


@functools.cache
def catalogue() -> dict:
    """The kernels by name."""
    from horovod_gqsgd.cuda_kernels.catalogue import kernels

    listed = {kernel.name: kernel for kernel in kernels()}
    assert len(listed) == len(kernels()), "two kernels of one name"
    return listed


@functools.cache
def sources(module: str) -> frozenset[Path]:
    """The files of this package that a module is made from: its own and what they import."""
    file = Path(str(sys.modules[module].__file__))
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {name for name in names if name.startswith("horovod_gqsgd.") and name in sys.modules}
    return frozenset([file]).union(*(sources(name) for name in ours))


def digest(name: str) -> str:
    """Hash of all that the machine code of a kernel is made from."""
    kernel, hashed = catalogue()[name], hashlib.sha256()
    for package in ("numba", "numba-cuda", ASSEMBLER[0]):
        hashed.update(f"{package}=={metadata.version(package)}\n".encode())
    hashed.update(repr((name, kernel.signature)).encode())
    files = {*sources(kernel.function.__module__), Path(__file__), Path(tools.__file__)}
    for text in sorted(path.read_bytes() for path in files):  # wherever this folder is
        hashed.update(text)
    return hashed.hexdigest()[:16]


def compile_ptx(name: str) -> dict[str, str]:
    """PTX of a kernel, by architecture.

    Numba's own part, which takes most of the time, is the same for all of them; a test compares
    the outcome with that of `numba.cuda.compile_ptx`.
    """
    from numba.cuda.compiler import _compile_pyfunc_with_fixup

    kernel = catalogue()[name]
    compiled, _ = _compile_pyfunc_with_fixup(
        kernel.function, kernel.signature, debug=False, lineinfo=False, device=False,
        fastmath=False, cc=(7, 0), opt=True, abi="numba", abi_info=None, forceinline=False,
        launch_bounds=None, lto=False,
    )  # fmt: skip
    return {a: readable(compiled.get_asm_str(cc=divmod(int(a), 10))) for a in ARCHITECTURES}


def readable(ptx: str) -> str:
    """Plain names for the kernel and its variables, whose own encode every argument type."""
    (entry,) = re.findall(r"\.entry (\w+)\(", ptx)
    ptx = re.sub(rf"\b{entry}", "kernel", ptx)
    for number, mangled in enumerate(dict.fromkeys(re.findall(r"\b_ZN\w+", ptx))):
        ptx = re.sub(rf"\b{mangled}\b", f"variable{number}", ptx)
    return ptx


@functools.cache
def _file(name: str) -> Path:
    return CACHE / f"{name.replace(' ', '-')}.{digest(name)}.json"


def _make(name: str) -> None:
    ptx = compile_ptx(name)
    resources = {a: asdict(assemble(text, a)) for a, text in ptx.items()}
    unfinished = _file(name).with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({"ptx": ptx, "resources": resources}))
    unfinished.rename(_file(name))


def make(names: Iterable[str]) -> None:
    """Compile what is not on disk, with all cores; removes what older sources gave."""
    CACHE.mkdir(parents=True, exist_ok=True)
    files = {_file(name) for name in catalogue()}
    for old in set(CACHE.glob("*.json")) - files:
        old.unlink()
    missing = [name for name in names if not _file(name).exists()]
    if missing:
        # Fresh processes: a copy of this one would share the state of its threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(missing)), context) as workers:
            list(workers.map(_make, missing))
    # What the compiler has imported stays. Visiting it took two thirds of the interpreter's time.
    gc.freeze()


@functools.cache
def program(name: str) -> Program:
    """A kernel that `make` has compiled."""
    stored = json.loads(_file(name).read_text())
    resources = {a: Resources(**numbers) for a, numbers in stored["resources"].items()}
    return Program(stored["ptx"], resources)
