"""How many machine instructions of which kind a kernel executes.

The assembler notes for every machine instruction the line of PTX it comes from, and the
interpreter has counted how often warps executed each line. Instructions of one basic block of
machine code are executed equally often: as often as most of their lines. So what was moved out of
a loop, or predicated in place of a branch, counts where it is and not where it was written.

The assembler is told not to unroll loops, so that a line is in one place.
"""

from __future__ import annotations

import functools
import re
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.cuda_code.tools import ASSEMBLER, tool
from tests.ptx.machine import WARP

DISASSEMBLER = ("nvidia-cuda-nvdisasm", "nvdisasm")

INSTRUCTION_LINE = re.compile(r"\t@?[!%a-z].*;$")
LABEL_LINE = re.compile(r"\$\w+:$")
LINE = re.compile(r'\s*//## File "kernel.ptx", line (\d+)')
LABEL = re.compile(r"\s*(\.L_x_\d+):")
CODE = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
SUBROUTINE = re.compile(r"\s*\$__internal[\w$]+:")
ENDS_BLOCK = ("BRA", "EXIT", "RET", "CALL")

Block = list[tuple[str, int]]

#: Kinds of instructions, by how their names begin; the rest only take a turn to be issued.
KINDS = {
    "integer": (
        "LOP", "SHF", "IADD", "ISETP", "SEL", "IMNMX", "VIMNMX", "VIADD", "VABSDIFF", "PRMT", "LEA",
        "FSETP", "FMNMX", "FSEL", "PLOP", "IABS", "SGXT", "BMSK", "MOV", "P2R", "R2P", "I2FP",
        "F2FP", "FCHK",
    ),
    "multiply": ("IMAD", "IDP"),
    "float32": ("FFMA", "FMUL", "FADD", "HADD", "HMUL", "HFMA"),
    "float64": ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
    "convert": ("MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO", "BREV", "REDUX"),
    "memory": ("LDG", "LDS", "STG", "STS", "RED", "ATOM"),
}  # fmt: skip


def kind_of(name: str) -> str:
    """The kind of an instruction, or ``"other"``."""
    matches = [
        (len(p), kind) for kind, prefixes in KINDS.items() for p in prefixes if name.startswith(p)
    ]
    return max(matches)[1] if matches else "other"


def turns(name: str) -> int:
    """Four bytes for each thread of a warp are one turn of the memory unit."""
    return {"128": 4, "64": 2}.get(name.rpartition(".")[2], 1)


def annotated(ptx: str) -> str:
    """The text with a line number before every instruction, and loops that stay as they are."""
    lines: list[str] = []
    count = 0
    for line in ptx.splitlines():
        if INSTRUCTION_LINE.match(line):
            count += 1
            lines.append(f"\t.loc 1 {count} 0")
        lines.append(line)
        if LABEL_LINE.match(line):
            lines.append('\t.pragma "nounroll";')
    return "\n".join([*lines, '.file 1 "kernel.ptx"', ""])


def disassemble(ptx: str, architecture: str) -> str:
    """Machine code of ``ptx`` as text, with the lines it comes from."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = str(Path(folder, "kernel.ptx")), str(Path(folder, "kernel.cubin"))
        Path(source).write_text(ptx)
        target = [f"--gpu-name=sm_{architecture}", "--generate-line-info"]
        subprocess.run([tool(*ASSEMBLER), *target, source, "--output-file", cubin], check=True)
        command = [tool(*DISASSEMBLER), "--print-line-info", "--print-code", cubin]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def basic_blocks(code: str) -> list[Block]:
    """Names of instructions, each with its line of PTX, block by block.

    Without subroutines and the blocks that call them: they are for rare arguments, as subnormal
    divisors.
    """
    found: list[Block] = [[]]
    rare, line = [], 0
    for text in code.splitlines():
        if SUBROUTINE.match(text):
            break
        if match := LINE.match(text):
            line = int(match[1])
        elif match := CODE.match(text):
            if match[1] != "NOP":
                found[-1].append((match[1], line))
            if "$__internal" in match[2]:
                rare.append(len(found) - 1)
            if match[1].startswith(ENDS_BLOCK):
                found.append([])
        elif LABEL.match(text):
            found.append([])
    return [block for number, block in enumerate(found) if block and number not in rare]


@functools.lru_cache(maxsize=8)
def machine_code(ptx: str, architecture: str) -> list[Block]:
    """What the assembler makes of a kernel."""
    return basic_blocks(disassemble(annotated(ptx), architecture))


def instructions(ptx: str, architecture: str, issued: np.ndarray) -> Counter[str]:
    """How often warps execute the instructions of each name.

    ``issued``: how often they executed each instruction of PTX.
    """
    counted: Counter[str] = Counter()
    for block in machine_code(ptx, architecture):
        times = statistics.median_low(int(issued[line - 1]) for _, line in block)
        for name, _ in block:
            counted[name] += times
    return counted


def executed(ptx: str, architecture: str, issued: np.ndarray) -> Counter[str]:
    """Instructions of all threads by kind, and ``"turns"`` of the memory unit."""
    counted: Counter[str] = Counter()
    for name, times in instructions(ptx, architecture, issued).items():
        kind = kind_of(name)
        counted[kind] += WARP * times
        if kind == "memory":
            counted["turns"] += WARP * times * turns(name)
    return counted
