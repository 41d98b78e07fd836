"""NVIDIA's assembler, from its PyPI package."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ASSEMBLER = ("nvidia-cuda-nvcc-cu12", "ptxas")


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel; bytes, but for registers."""

    registers: int
    shared: int
    local: int
    spills: int


@functools.cache
def tool(package: str, name: str) -> str:
    """The path of a program in an installed package."""
    files = metadata.files(package) or []
    return str(next(file for file in files if file.name == name).locate())


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def assemble(ptx: str, architecture: str) -> Resources:
    """Resources of the only kernel in ``ptx``, once it is machine code."""
    with tempfile.TemporaryDirectory() as folder:
        return _resources(_ptxas(ptx, architecture, Path(folder)))


def _ptxas(ptx: str, architecture: str, folder: Path) -> str:
    source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    arguments = [f"--gpu-name=sm_{architecture}", str(source), "--output-file", str(cubin)]
    return _run(tool(*ASSEMBLER), "--verbose", *arguments)


def _resources(report: str) -> Resources:
    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, report))

    if not re.search(r"Used \d+ registers", report):
        raise RuntimeError(f"ptxas reports no kernel:\n{report}")
    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared=number(r"(\d+) bytes smem"),
        local=number(r"(\d+) bytes stack frame") + number(r"(\d+) bytes lmem"),
        spills=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
    )
