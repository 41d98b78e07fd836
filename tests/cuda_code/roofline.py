"""How fast a kernel can be on a GPU: what each unit needs for an element, against DRAM.

The rates are NVIDIA's published ones (data sheets; CUDA programming guide, throughput of native
arithmetic instructions). They bound the speed from above and are no measurement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """``rates``: results per clock and multiprocessor, by unit; ``"all"`` is what can be issued."""

    name: str
    architecture: str
    multiprocessors: int
    gigahertz: float
    gigabytes: float  # per second, from DRAM
    rates: dict[str, int]


#: Four schedulers issue one instruction for 32 threads each.
COMMON = {"all": 128, "integer": 64, "multiply": 64, "convert": 16, "memory": 32}
GPUS = (
    Gpu("A100", "80", 108, 1.41, 2039, COMMON | {"float32": 64, "float64": 32}),
    Gpu("H100", "90", 132, 1.98, 3352, COMMON | {"float32": 128, "float64": 64}),
)


@dataclass(frozen=True)
class Estimate:
    """``share`` of the DRAM bandwidth that the busiest unit allows, and that unit."""

    share: float
    unit: str

    @property
    def memory_bound(self) -> bool:
        return self.share >= 1


def estimate(gpu: Gpu, instructions: dict[str, float], bytes_per_element: float) -> Estimate:
    """The bound of a kernel that moves so many bytes and executes so many instructions."""
    clocks = {unit: instructions.get(unit, 0) / rate for unit, rate in gpu.rates.items()}
    unit = max(clocks, key=lambda name: clocks[name])
    elements = gpu.multiprocessors * gpu.gigahertz / clocks[unit]  # 10^9 per second
    return Estimate(elements * bytes_per_element / gpu.gigabytes, unit)
