"""The page docs/cuda-kernels.md, from the compiled kernels."""

from __future__ import annotations

import textwrap
from importlib import metadata

from tests.cuda_code.counts import SIZE, per_element
from tests.cuda_code.machine_code import DISASSEMBLER
from tests.cuda_code.programs import ARCHITECTURES, ROOT, catalogue, program
from tests.cuda_code.roofline import GPUS, ISSUE, Estimate, Gpu, estimate, issued
from tests.cuda_code.tools import ASSEMBLER

PAGE = ROOT / "docs" / "cuda-kernels.md"

#: Why a kernel is not bound by memory, by how its name begins.
REASONS = {
    "norm.contribution": "one thread for the norm of a block, of 1,024 elements by default: a "
    "hundredth of the other kernels",
    "prepare": "one thread for the norm of a block, as above",
    "linear.encode": "the dither: a hash of nine integer operations, and a second one where the "
    "ranks' rounding is correlated, for an element of two or four bytes",
    "linear.decode": "a correctly rounded division for an element of two bytes",
    "exponential.encode": "the dither, as for linear levels, and the search for the level",
    "exponential.decode": "the level is computed rather than looked up",
    "reduce.exact": "a level as int64 for each rank's code of one byte, then a dither and a search "
    "for the level of the result",
    "reduce.pairwise": "a dither and a search for the level at every node of the tree",
    "reduce.dither": "the hash alone, one word a thread; for reductions of your own",
    "groups": "codes are shifted into place one by one; for reductions of your own",
}

#: What one float32 gradient takes by default, on a power of two of ranks.
DEFAULT = ("norm.maximum float32", "linear.encode binary float32", "linear.decode float32")

HEAD = """# The CUDA kernels as compiled

What compiler and assembler make of every kernel, and how fast a GPU could be at best. Written by

```
python -m tests.cuda_code
```

from {tools}.
No GPU is needed, and none was used: the last columns are a model, not a measurement.

- *registers* of a thread: on sm_80, on sm_90, and the fewest and most on
  sm_{architectures}; *shared*: bytes of shared memory of a block of
  threads. No kernel spills registers or uses local memory on any of them.
- *bytes* read and written, and machine *instructions* executed, for one more element of the
  gradient, with 8 bits, blocks of 1,024 and four ranks (three where rounding is `correlated`, two
  where it is `independent`): the difference between {size:,} and {twice:,} elements.
- *A100*, *H100*: picoseconds for an element, of the busiest unit of the multiprocessors and of
  DRAM. Where DRAM takes longer the kernel is bound by **memory**, as it should be. Else the unit is
  named, with the share of DRAM's bandwidth that it leaves: *issue* of instructions, *integer*
  (logic, shifts, comparisons, some additions), *multiply* (and float32, and the other additions),
  *float64*, *convert*, *memory access*.

How the instructions are counted: an interpreter executes the PTX and counts how often warps take
each of its instructions, loops and branches as they come; the machine code tells which of them each
machine instruction belongs to (`tests/cuda_code/machine_code.py`). A test compares the number of
stores.

Rates of the model, per clock and multiprocessor: multiprocessors, clocks and bandwidths of NVIDIA's
data sheets (A100 80 GB SXM, H100 SXM), results per clock of the CUDA programming guide ("Throughput
of Native Arithmetic Instructions", compute capability 8.0 and 9.0), schedulers and units for memory
access of the white papers of both architectures:

| | SMs | GHz | GB/s | issue | integer | multiply | float32 | float64 | convert | access |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{rates}

{default}

"""


def resources(name: str) -> str:
    """The part of a kernel's row that the assembler tells."""
    of = program(name).resources
    registers = sorted(each.registers for each in of.values())
    shared = max(each.shared for each in of.values())
    figures = of["80"].registers, of["90"].registers, f"{registers[0]}–{registers[-1]}", shared
    return f"| `{name}` | " + " | ".join(map(str, figures)) + " |"


def estimates(name: str) -> list[tuple[Gpu, Estimate]]:
    """The bounds of a kernel."""
    counted = per_element(name)
    return [
        (gpu, estimate(gpu, counted.instructions[gpu.architecture], counted.bytes)) for gpu in GPUS
    ]


def row(name: str) -> str:
    """A kernel's row of the table."""
    counted = per_element(name)
    executed = " | ".join(f"{issued(counts):.3g}" for counts in counted.instructions.values())
    bounds = " | ".join(_bound(found) for _, found in estimates(name))
    return f"{resources(name)} {counted.bytes:.3g} | {executed} | {bounds} |"


def _bound(found: Estimate) -> str:
    times = f"{found.compute:.2g} / {found.dram:.2g}"
    return (
        f"{times} **memory**" if found.memory_bound else f"{times} {found.unit} {found.share:.0%}"
    )


def page() -> str:
    """The whole page."""
    for name in catalogue():
        for each in program(name).resources.values():
            assert (each.spills, each.local) == (0, 0), name
    columns = ["kernel", "sm_80", "sm_90", "all", "shared", "bytes"]
    columns += [f"instr. {gpu.architecture}" for gpu in GPUS] + [gpu.name for gpu in GPUS]
    return "\n".join([
        _head() + "| " + " | ".join(columns) + " |",
        "|---|" + "---:|" * (len(columns) - 1),
        *map(row, catalogue()),
        "",
        "## What is not bound by memory, and why",
        "",
        *_reasons(),
        "",
        "## float64",
        "",
        "Only where a reason is given; a test holds every other kernel to float32:",
        "",
        *_float64(),
        "",
    ])  # fmt: skip


def _head() -> str:
    packages = ("numba-cuda", ASSEMBLER[0], DISASSEMBLER[0])
    order = ("integer", "multiply", "float32", "float64", "convert", "turns")
    rates = [
        f"| {g.name} | {g.multiprocessors} | {g.gigahertz} | {g.gigabytes:,} | {ISSUE} | "
        + " | ".join(str(g.rates[kind]) for kind in order)
        + " |"
        for g in GPUS
    ]
    longest = [
        sum(max(found.compute, found.dram) for found in each)
        for each in zip(*([found for _, found in estimates(name)] for name in DEFAULT), strict=True)
    ]
    sums = [
        f"{total:.2g} ps an element on an {gpu.name}, 100 million in {total / 10:.2g} ms"
        for gpu, total in zip(GPUS, longest, strict=True)
    ]
    kernels = ", ".join(f"`{name}`" for name in DEFAULT)
    return HEAD.format(
        tools=", ".join(f"{package} {metadata.version(package)}" for package in packages),
        architectures=", ".join(ARCHITECTURES),
        size=SIZE,
        twice=2 * SIZE,
        rates="\n".join(rates),
        default=_wrapped(f"By default a float32 gradient takes {kernels}: {'; '.join(sums)}."),
    )


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False)


def _reasons() -> list[str]:
    slower = [name for name in catalogue() if not all(e.memory_bound for _, e in estimates(name))]
    insist_on_reasons(slower)
    return [reason(key) for key in REASONS]


def reason(key: str) -> str:
    """The line of the page that tells why kernels are not bound by memory."""
    return _wrapped(f"- `{key}`: {REASONS[key]}.")


def insist_on_reasons(slower: list[str]) -> None:
    """Raise unless every kernel that is not bound by memory has a reason, and no other one has."""
    unexplained = [name for name in slower if not name.startswith(tuple(REASONS))]
    assert not unexplained, f"no reason given for {unexplained}"
    stale = [key for key in REASONS if not any(name.startswith(key) for name in slower)]
    assert not stale, f"bound by memory, and a reason is given: {stale}"


def _float64() -> list[str]:
    reasons: dict[str, list[str]] = {}
    for kernel in catalogue().values():
        if kernel.float64:
            reasons.setdefault(kernel.float64, []).append(f"`{kernel.name}`")
    return [_wrapped(f"- {why}: {', '.join(names)}.") for why, names in reasons.items()]
