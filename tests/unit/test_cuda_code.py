"""The CUDA kernels as compiled, for every architecture, without a GPU.

All of the catalogue is compiled and assembled for all of `ARCHITECTURES`. Its PTX, which differs
between `PROGRAMS` only, is executed by an interpreter and gives the bits of the specification:
here every kernel once, in test_cuda_results.py all that may become of them.
"""

import re

import pytest

from tests.cuda_code import programs, report
from tests.cuda_code.cases import check
from tests.cuda_code.device import Interpreter
from tests.cuda_code.machine_code import instructions
from tests.cuda_code.programs import ARCHITECTURES, catalogue, program

#: One architecture for each program that the compiler makes of a kernel.
PROGRAMS = ("80", "100")
SIZES = {"80": (0, 1, 1001, 8192), "100": (4099,)}
#: Those whose instructions are counted here; all of them are in the page.
COUNTED = ("linear.encode binary float32", "linear.decode float16", "exponential.encode 4 binary "
    "float32", "reduce.exact 4")  # fmt: skip
#: Those that `make test` compiles; the first one's check runs the others, too.
FEW = ("linear.encode binary float32", "linear.decode float32", "prepare.prepare inf")


def each(names):
    """Tests of kernels, of which `make test` runs those of the first of `FEW`."""
    marked = [n if n == FEW[0] else pytest.param(n, marks=pytest.mark.extended) for n in names]
    return pytest.mark.parametrize("name", marked)


each_kernel = each(catalogue())
each_program = pytest.mark.parametrize("architecture", PROGRAMS)


@pytest.fixture(autouse=True, scope="module")
def _compiled(request):
    """Of the catalogue no more than the tests that run ask for: it takes a minute or two."""
    ours = [item for item in request.session.items if item.module is request.module]
    every = any(item.get_closest_marker("extended") for item in ours)
    programs.make(catalogue() if every else FEW)


# -- what the compiler made


@each_kernel
def test_no_spills_and_no_local_memory(name):
    for architecture in ARCHITECTURES:
        resources = program(name).resources[architecture]
        assert (resources.spills, resources.local) == (0, 0), (architecture, resources)
        assert not re.search(r"\.local|\bcall\b", program(name).ptx[architecture])


@each_kernel
def test_float64_only_where_a_reason_is_given(name):
    for architecture in ARCHITECTURES:
        used = ".f64" in program(name).ptx[architecture]
        assert used == bool(catalogue()[name].float64), architecture


#: How a thread reads or writes four elements of a gradient, by type.
ITEMS4 = {
    "float32": r"global\.v4\.[bfu]32",
    "float16": r"global\.(v4\.[bu]16|[bu]64)",
    "bfloat16": r"global\.(v4\.[bu]16|[bu]64)",
    "float64": r"global\.[bf]64",  # four of them: 32 bytes are more than a thread takes at once
}
WORDS4, EIGHT_CODES = r"global\.v4\.[bu]32", r"global\.[bu]64"


def accesses(name: str) -> list[str]:
    """The widest loads and stores that a kernel must have: 16 bytes, 8 of 16-bit types or codes."""
    operation, items = name.split()[0], ITEMS4.get(name.split()[-1], "")
    reads = {"norm.maximum": items, "linear.encode": items, "linear.decode": WORDS4,
        "exponential.encode": items, "exponential.decode": EIGHT_CODES, "reduce.exact": EIGHT_CODES,
        "reduce.pairwise": EIGHT_CODES, "groups.unpack": EIGHT_CODES}  # fmt: skip
    writes = {"linear.encode": WORDS4, "linear.decode": items, "exponential.encode": EIGHT_CODES,
        "exponential.decode": items, "reduce.exact": EIGHT_CODES, "reduce.pairwise": EIGHT_CODES,
        "groups.pack": EIGHT_CODES}  # fmt: skip
    found = [rf"ld\.{reads[operation]}"] if operation in reads else []
    return found + ([rf"st\.{writes[operation]}"] if operation in writes else [])


@each_kernel
def test_wide_loads_and_stores(name):
    for architecture in ARCHITECTURES:
        for access in accesses(name):
            assert re.search(access, program(name).ptx[architecture]), (architecture, access)


@each_kernel
def test_architectures_share_their_programs(name):
    """What is shown for `PROGRAMS` holds for all `ARCHITECTURES`."""
    text = {a: re.sub(r"\.target \w+", "", ptx) for a, ptx in program(name).ptx.items()}
    assert set(text.values()) == {text[a] for a in PROGRAMS}
    for architecture in ARCHITECTURES:
        assert f".target sm_{architecture}\n" in program(name).ptx[architecture]


@pytest.mark.extended
def test_the_page_tells_what_the_compiler_made():
    page = report.PAGE.read_text()
    assert re.findall(r"^\| `(.+?)` ", page, re.M) == list(catalogue())
    for name in catalogue():
        assert f"\n{report.resources(name)} " in page


def test_reasons_are_given_for_what_memory_does_not_bind_and_for_nothing_else():
    page = report.PAGE.read_text()
    rows = re.findall(r"^\| `(.+?)` .* \| (.+ \| .+) \|$", page, re.M)
    assert len(rows) == len(catalogue())
    report.insist_on_reasons([name for name, gpus in rows if gpus.count("**memory**") < 2])
    for key in report.REASONS:
        assert f"\n{report.reason(key)}\n" in page


@each(COUNTED)
def test_the_page_tells_what_kernels_execute(name):
    """For more: ``python -m tests.cuda_code`` writes the same page again."""
    assert f"\n{report.row(name)}\n" in report.PAGE.read_text()


@each(COUNTED)
def test_machine_code_stores_as_often_as_ptx(name):
    """Nobody moves or duplicates a store: it tells whether executions are counted right."""
    device = Interpreter("80")
    check(name, device, 20_000)
    machine = device.seen[name]
    pairs = zip(machine.function.instructions, machine.issued, strict=True)
    stores = sum(int(n) for i, n in pairs if i.name == "st" and "global" in i.modifiers)
    for architecture in ("80", "90"):
        code = instructions(program(name).ptx[architecture], architecture, machine.issued)
        assert sum(n for i, n in code.items() if i.startswith("STG")) == stores > 0


@pytest.mark.extended
def test_the_public_compiler_gives_the_same():
    from numba import cuda

    kernel = catalogue()["norm.maximum float32"]
    for architecture in PROGRAMS:
        target = divmod(int(architecture), 10)
        ptx, _ = cuda.compile_ptx(kernel.function, kernel.signature, cc=target)
        both = programs.readable(ptx), program(kernel.name).ptx[architecture]
        # shared memory is numbered by what the process has compiled before
        public, ours = (re.sub(r"smem_\d+", "smem", text) for text in both)
        assert public == ours


# -- what it computes


@each_program
@each_kernel
def test_kernels(name, architecture):
    device = Interpreter(architecture)
    for size in SIZES[architecture]:
        check(name, device, size)
    assert name in device.seen
