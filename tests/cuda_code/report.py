"""The page docs/cuda-kernels.md, from the compiled kernels."""

from __future__ import annotations

from importlib import metadata

import numpy as np

from tests.cuda_code.cases import check
from tests.cuda_code.device import Interpreter
from tests.cuda_code.machine_code import per_element
from tests.cuda_code.programs import ARCHITECTURES, catalogue, program
from tests.cuda_code.roofline import GPUS, Estimate, estimate
from tests.cuda_code.tools import ASSEMBLER

SIZE = 65_536  # elements of the run that is counted

#: Why a kernel is not bound by memory, by how its name begins.
REASONS = {
    "norm.maximum": "four elements a thread, and a tree in shared memory over them",
    "norm.contribution": "one thread for the norm of a block: microseconds for any tensor",
    "prepare": "one thread for the norm of a block: microseconds for any tensor",
    "linear.encode": "the dither: a hash of nine integer operations, two of them where the ranks' "
    "rounding is correlated, for an element of two to four bytes",
    "linear.decode": "a division and three conversions for an element of two bytes",
    "exponential.encode": "the dither, as for linear levels, and the search for the level",
    "exponential.decode": "the level is computed, not looked up, for an element of two bytes",
    "reduce": "codes of one byte: a level for each rank, one dither and one search for the result",
    "groups": "bytes written or read one by one; used for reductions of your own only",
}

HEAD = """# The CUDA kernels as compiled

What the compiler makes of every kernel, and how fast the GPU could be at best. Written by

```
python -m tests.cuda_code
```

from {tools}; no GPU is needed, and none was used: the last columns are a model, not a measurement.

- *registers*: for sm_{architectures}; *shared*: bytes of shared memory, the most of them. No kernel
  spills registers or uses local memory on any of them (`make test T=tests/unit/test_cuda_code.py`).
- *bytes*: read and written per element of the gradient, with 8 bits and four ranks.
- *instructions* per element on sm_80 / sm_90: machine code, weighed by how often each line of PTX
  was executed for {size:,} elements. Subroutines for rare arguments (subnormal divisors) are left
  out.
- *A100*, *H100*: what the busiest unit of a multiprocessor allows, as a share of the bandwidth of
  DRAM. From 100 % on the kernel is bound by memory (**memory**), as it should be; else the unit
  is named: *issue* of instructions, *integer* (logic, shifts, additions, comparisons), *multiply*,
  *convert*, *float32*, *float64*, *memory* access.

Rates of the model, per clock and multiprocessor, after NVIDIA's data sheets and programming guide:

| | SMs | GHz | GB/s | issue | integer | multiply | float32 | float64 | convert | access |
|---|---|---|---|---|---|---|---|---|---|---|
{rates}

"""


def resources(name: str) -> str:
    """The part of a kernel's row that ptxas tells."""
    of = program(name).resources
    registers = " ".join(str(of[a].registers) for a in ARCHITECTURES)
    return f"| `{name}` | {registers} | {max(each.shared for each in of.values())} |"


def _bound(found: Estimate) -> str:
    if found.memory_bound:
        return f"**memory** ({found.share:.0%})"
    return f"{'issue' if found.unit == 'all' else found.unit} {found.share:.0%}"


def _row(name: str, issued: np.ndarray) -> tuple[str, bool]:
    """A row of the table, and whether memory bounds the kernel on every GPU."""
    kernel = catalogue()[name]
    # a header has an entry for each block of 1,024 elements
    elements = SIZE * 1024 if name == "prepare.header" else SIZE
    counts = {
        gpu: per_element(program(name).ptx[gpu.architecture], gpu.architecture, issued, elements)
        for gpu in GPUS
    }
    found = [estimate(gpu, counts[gpu], kernel.bytes) for gpu in GPUS]
    per = " / ".join(f"{counts[gpu]['all']:.3g}" for gpu in GPUS)
    bounds = " | ".join(_bound(each) for each in found)
    row = f"{resources(name)} {kernel.bytes:.3g} | {per} | {bounds} |"
    return row, all(each.memory_bound for each in found)


def page() -> str:
    """The whole page."""
    device, rows, slower = Interpreter("80"), [], []
    for name in catalogue():
        check(name, device, SIZE)
        row, bound = _row(name, device.seen[name].issued)
        rows.append(row)
        if not bound:
            slower.append(name)
    reasons = [(key, why) for key, why in REASONS.items() if any(n.startswith(key) for n in slower)]
    unexplained = [n for n in slower if not n.startswith(tuple(REASONS))]
    assert not unexplained, f"no reason given for {unexplained}"
    float64 = {kernel.float64 for kernel in catalogue().values() if kernel.float64}
    names = {why: [k.name for k in catalogue().values() if k.float64 == why] for why in float64}
    columns = ["kernel", "registers", "shared", "bytes", "instructions", *(g.name for g in GPUS)]
    return "\n".join([
        _head(),
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *rows,
        "",
        "## What is not bound by memory, and why",
        "",
        *(f"- `{key}`: {why}." for key, why in reasons),
        "",
        "## float64",
        "",
        "Only where a reason is given; a test holds every other kernel to float32:",
        "",
        *(f"- {why}: {', '.join(f'`{n}`' for n in sorted(names[why]))}." for why in sorted(names)),
        "",
    ])  # fmt: skip


def _head() -> str:
    packages = ("numba-cuda", ASSEMBLER[0])
    order = ("all", "integer", "multiply", "float32", "float64", "convert", "memory")
    rates = [
        f"| {g.name} | {g.multiprocessors} | {g.gigahertz} | {g.gigabytes:,.0f} | "
        + " | ".join(str(g.rates[unit]) for unit in order)
        + " |"
        for g in GPUS
    ]
    return HEAD.format(
        tools=", ".join(f"{package} {metadata.version(package)}" for package in packages),
        architectures=", ".join(ARCHITECTURES),
        size=SIZE,
        rates="\n".join(rates),
    )
