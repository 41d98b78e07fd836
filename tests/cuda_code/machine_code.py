"""How many machine instructions of which kind a kernel executes per element.

ptxas is told to note for every machine instruction the line of PTX it comes from, and the
interpreter counts how often warps take each line. Where the assembler made several copies of a
loop's body, which its loads and stores tell, each turn is counted as an average copy. Code that
it moved out of a loop counts as if still inside: the figures are high rather than low.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict

import numpy as np

from tests.cuda_code.tools import disassemble
from tests.ptx.machine import WARP
from tests.ptx.text import Function, parse

INSTRUCTION_LINE = re.compile(r"\t@?[!%a-z].*;$")
LINE = re.compile(r'\s*//## File "kernel.ptx", line (\d+)')
LABEL = re.compile(r"\s*(\.L_x_\d+):")
CODE = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
SUBROUTINE = re.compile(r"\$__internal\w+:")
ENDS_BLOCK = ("BRA", "EXIT", "RET", "CALL")

#: Units of a multiprocessor, by how the names of their instructions begin; the rest only issue.
UNITS = {
    "integer": (
        "LOP", "SHF", "IADD", "ISETP", "SEL", "IMNMX", "VIMNMX", "VIADD", "VABSDIFF", "PRMT", "LEA",
        "FSETP", "FMNMX", "FSEL", "PLOP", "IABS", "SGXT", "BMSK", "MOV", "P2R", "R2P", "I2FP",
        "F2FP", "FCHK",
    ),
    "multiply": ("IMAD", "IDP"),
    "float32": ("FFMA", "FMUL", "FADD", "HADD", "HMUL", "HFMA"),
    "float64": ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
    "convert": ("MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO", "BREV"),
    "memory": ("LD", "ST", "RED", "ATOM"),
}  # fmt: skip


def unit_of(name: str) -> str:
    """The unit that executes an instruction, or ``"other"``."""
    matches = [
        (len(p), unit) for unit, prefixes in UNITS.items() for p in prefixes if name.startswith(p)
    ]
    return max(matches)[1] if matches else "other"


def numbered(ptx: str) -> str:
    """The text with a line number for the assembler before every instruction."""
    lines: list[str] = []
    count = 0
    for line in ptx.splitlines():
        if INSTRUCTION_LINE.match(line):
            count += 1
            lines.append(f"\t.loc 1 {count} 0")
        lines.append(line)
    return "\n".join([*lines, '.file 1 "kernel.ptx"', ""])


def instructions(code: str) -> list[tuple[str, int]]:
    """Names of machine instructions, each with its line of PTX.

    Without subroutines and calls of them: they are for rare arguments, as subnormal divisors.
    """
    found: list[tuple[str, int]] = []
    block: list[tuple[str, int]] = []
    line = 0
    for text in code.splitlines():
        if SUBROUTINE.match(text):
            break
        if match := LINE.match(text):
            line = int(match[1])
        elif match := CODE.match(text):
            block.append((match[1], line))
        if LABEL.match(text) or (match and match[1].startswith(ENDS_BLOCK)):
            if not any(name.startswith("CALL") for name, _ in block):
                found += block
            block = []
    return [(name, line) for name, line in found + block if name != "NOP"]


def basic_blocks(function: Function) -> list[int]:
    """For every instruction of PTX the number of its block: from a label or branch to the next."""
    starts = set(function.labels.values())
    numbers, number = [], 0
    for place, instruction in enumerate(function.instructions):
        number += place in starts
        numbers.append(number)
        number += instruction.name in ("bra", "ret")
    return numbers


def copies(function: Function, lines: list[int], mapped: Counter[int]) -> float:
    """How many copies of a block of PTX the machine code holds."""
    accesses = [
        mapped[line]
        for line in lines
        if function.instructions[line - 1].name in ("ld", "st", "red", "atom")
        and "param" not in function.instructions[line - 1].modifiers
        and mapped[line]
    ]
    if accesses:
        return statistics.median(accesses)
    return min(mapped[line] for line in lines if mapped[line])


def per_element(ptx: str, architecture: str, issued: np.ndarray, elements: int) -> dict[str, float]:
    """Instructions per element by unit, and in ``"all"``, of a run with ``issued`` counts."""
    function = parse(ptx).entry
    code = instructions(disassemble(numbered(ptx), architecture))
    mapped = Counter(line for _, line in code)
    numbers = basic_blocks(function)
    lines: dict[int, list[int]] = {}
    for line, number in enumerate(numbers, 1):
        lines.setdefault(number, []).append(line)
    times = {
        number: int(issued[of[0] - 1]) / copies(function, of, mapped)
        for number, of in lines.items()
        if any(mapped[line] for line in of)
    }
    totals: dict[str, float] = defaultdict(float)
    for name, line in code:
        totals["all"] += times[numbers[line - 1]]
        totals[unit_of(name)] += times[numbers[line - 1]]
    return {unit: WARP * count / elements for unit, count in totals.items()}
