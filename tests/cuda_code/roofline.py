"""How fast a kernel can be on a GPU: clocks of the units that execute it, against DRAM.

Multiprocessors, clock and bandwidth are of NVIDIA's data sheets (A100 80 GB SXM, H100 SXM), results
per clock and multiprocessor of the CUDA programming guide ("Throughput of Native Arithmetic
Instructions", compute capability 8.0 and 9.0). They bound the speed from above.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """``rates``: results per clock and multiprocessor, by kind of instruction."""

    name: str
    architecture: str
    multiprocessors: int
    gigahertz: float
    gigabytes: float  # per second, from DRAM
    rates: dict[str, int]


RATES = {"integer": 64, "multiply": 64, "convert": 16, "turns": 32}
GPUS = (
    Gpu("A100", "80", 108, 1.41, 2039, RATES | {"float32": 64, "float64": 32}),
    Gpu("H100", "90", 132, 1.98, 3350, RATES | {"float32": 128, "float64": 64}),
)

#: Four schedulers issue one instruction a clock for 32 threads each.
ISSUE = 128

#: Units, by the kinds of instructions that they execute.
UNITS = {
    "integer": ("integer",),
    "multiply": ("multiply", "float32"),
    "float64": ("float64",),
    "convert": ("convert",),
    "memory access": ("turns",),
}


@dataclass(frozen=True)
class Estimate:
    """Picoseconds per element, of the whole GPU: of the ``unit`` that needs most, and of DRAM."""

    unit: str
    compute: float
    dram: float

    @property
    def memory_bound(self) -> bool:
        return self.dram >= self.compute

    @property
    def share(self) -> float:
        """Of the bandwidth of DRAM, that the unit allows."""
        return min(1.0, self.dram / self.compute)


def issued(instructions: Counter[str]) -> float:
    """Instructions of all kinds; the turns of the memory unit are not issued one by one."""
    return sum(instructions.values()) - instructions["turns"]


def estimate(gpu: Gpu, instructions: Counter[str], bytes_per_element: float) -> Estimate:
    """The bound of a kernel that executes and moves so much per element."""
    clocks = {
        unit: sum(instructions[kind] / gpu.rates[kind] for kind in kinds)
        for unit, kinds in UNITS.items()
    }
    clocks["issue"] = issued(instructions) / ISSUE
    unit = max(clocks, key=lambda name: clocks[name])
    each = clocks[unit] / (gpu.multiprocessors * gpu.gigahertz) * 1000
    return Estimate(unit, each, bytes_per_element / gpu.gigabytes * 1000)
