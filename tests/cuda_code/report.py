"""The page docs/cuda-kernels.md, from the compiled kernels."""

from __future__ import annotations

from importlib import metadata

from tests.cuda_code.programs import ARCHITECTURES, catalogue, program
from tests.cuda_code.tools import ASSEMBLER

HEAD = """# The CUDA kernels as compiled

What compiler and assembler make of every kernel, on every architecture. Written by

```
python -m tests.cuda_code
```

from {tools}; no GPU is needed. Registers a thread, by architecture; *shared*: bytes of shared
memory of a block of threads, the most of them; *bytes*: read and written per element of the
gradient, with 8 bits and four ranks. No kernel spills registers or uses local memory on any
architecture.

"""


def row(name: str) -> str:
    """A kernel's row of the table."""
    of = program(name).resources
    registers = " | ".join(str(of[a].registers) for a in ARCHITECTURES)
    shared = max(each.shared for each in of.values())
    return f"| `{name}` | {registers} | {shared} | {catalogue()[name].bytes:.3g} |"


def page() -> str:
    """The whole page."""
    for name in catalogue():
        for resources in program(name).resources.values():
            assert (resources.spills, resources.local) == (0, 0), name
    packages = ("numba-cuda", ASSEMBLER[0])
    tools = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
    columns = ["kernel", *(f"sm_{a}" for a in ARCHITECTURES), "shared", "bytes"]
    reasons: dict[str, list[str]] = {}
    for kernel in catalogue().values():
        if kernel.float64:
            reasons.setdefault(kernel.float64, []).append(f"`{kernel.name}`")
    return "\n".join([
        HEAD.format(tools=tools) + "| " + " | ".join(columns) + " |",
        "|---|" + "---:|" * (len(columns) - 1),
        *map(row, catalogue()),
        "",
        "## float64",
        "",
        "Only where a reason is given; a test holds every other kernel to float32:",
        "",
        *(f"- {why}: {', '.join(names)}." for why, names in reasons.items()),
        "",
    ])  # fmt: skip
