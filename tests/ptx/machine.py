"""Execution: every thread has its own place in the program; those at the lowest step together.

Taking the lowest place lets threads that parted at a branch meet again. A barrier stops a thread
until all threads of its block are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tests.ptx.convert
import tests.ptx.floats
import tests.ptx.integers  # noqa: F401 -- these three fill the table of operations
from tests.ptx.alu import Compute, operation
from tests.ptx.kinds import PRED, U64, Kind
from tests.ptx.memory import Cells, Global, MemoryFault, Shared, load, store, update
from tests.ptx.text import (
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Operand,
    Register,
    Symbol,
    UnknownInstruction,
)

Active = np.ndarray | slice  # indices of threads, or all of them
ALL = slice(None)
NOBODY: Active = np.empty(0, np.int64)
Step = Callable[[Active], None]
Fronts = dict[int, Active]
WARP = 32
NO_EFFECT = ("membar", "fence")


@dataclass(frozen=True)
class Schedule:
    """The order of threads between two barriers: ``width`` of them at a time, shuffled.

    Hardware promises no order among warps. A kernel that lacks a barrier may be right when all
    threads step together, and is wrong in some other order.
    """

    width: int | None = None
    seed: int = 0

    def groups(self, threads: int) -> list[Active]:
        """Threads that step together, in the order of their turns."""
        if self.width is None:
            return [ALL]
        groups = np.array_split(np.arange(threads), -(-threads // self.width))
        order = np.random.default_rng(self.seed).permutation(len(groups))
        return [groups[i] for i in order]


class Machine:
    """One launch of one kernel, for the blocks numbered ``blocks`` of a grid."""

    def __init__(
        self,
        module: Module,
        function: Function,
        memory: Global,
        params: dict[str, np.ndarray],
        grid: int,
        threads: int,
        blocks: np.ndarray,
    ) -> None:
        self.function, self.memory, self.params = function, memory, params
        self.count = threads * len(blocks)
        self.block = np.repeat(np.arange(len(blocks)), threads)
        self.registers: dict[str, np.ndarray] = {}
        one, zero = np.ones(self.count, np.uint32), np.zeros(self.count, np.uint32)
        self.special = {f"%{name}.{axis}": zero for name in ("tid", "ctaid") for axis in "yz"}
        self.special |= {f"%{name}.{axis}": one for name in ("ntid", "nctaid") for axis in "yz"}
        self.special |= {
            "%tid.x": np.tile(np.arange(threads, dtype=np.uint32), len(blocks)),
            "%ctaid.x": np.repeat(blocks.astype(np.uint32), threads),
            "%ntid.x": one * np.uint32(threads),
            "%nctaid.x": one * np.uint32(grid),
        }
        self.symbols: dict[str, int] = {}
        self.shared = Shared(len(blocks), self._place(module))
        self.steps = [self._decode(i) for i in function.instructions]
        self.issued = np.zeros(len(self.steps), np.int64)  # how many warps took each step

    def _place(self, module: Module) -> int:
        """Give every variable an address; returns the size of shared memory."""
        size = 0
        for variable in [*module.variables, *self.function.variables]:
            if variable.space == "local":
                raise UnknownInstruction(f"local memory: {variable.name}")
            if variable.space == "shared":
                start = -(-size // variable.align) * variable.align
                self.symbols[variable.name], size = start, start + variable.size
            else:
                content = np.zeros(variable.size, np.uint8)
                content[: len(variable.content)] = np.frombuffer(variable.content, np.uint8)
                self.symbols[variable.name] = self.memory.allocate(content).address
        return size

    # -- control

    def run(self, schedule: Schedule) -> None:
        """Execute until every thread has returned."""
        with np.errstate(all="ignore"):
            turns: list[Fronts] = [{0: group} for group in schedule.groups(self.count)]
            while turns:
                waiting = [self._to_barrier(fronts) for fronts in turns]
                turns = self._pass_barrier([w for w in waiting if w])

    def _to_barrier(self, fronts: Fronts) -> Fronts:
        """Run threads until each has returned or waits behind a barrier."""
        waiting: Fronts = {}
        while fronts:
            place = min(fronts)
            active = fronts.pop(place)
            meeting = min(fronts, default=-1)
            while place != meeting:
                instruction = self.function.instructions[place]
                self.issued[place] += self._warps(active)
                if instruction.name in ("bra", "ret", "exit", "bar", "barrier"):
                    self._turn(instruction, place, active, fronts, waiting)
                    break
                self._step(place, instruction, active)
                place += 1
            else:
                self._join(fronts, place, active)
        return waiting

    def _step(self, place: int, instruction: Instruction, active: Active) -> None:
        if instruction.guard is not None:
            active, _ = self._split(instruction, active)
        if self._size(active):
            try:
                self.steps[place](active)
            except MemoryFault as fault:
                raise MemoryFault(f"{instruction.text}: {fault}") from None

    def _turn(
        self,
        instruction: Instruction,
        place: int,
        active: Active,
        fronts: Fronts,
        waiting: Fronts,
    ) -> None:
        """A branch, a return or a barrier."""
        taken, rest = active, NOBODY
        if instruction.guard is not None:
            taken, rest = self._split(instruction, active)
        self._join(fronts, place + 1, rest)
        if instruction.name == "bra":
            (label,) = instruction.operands
            assert isinstance(label, Symbol)
            self._join(fronts, self.function.labels[label.name], taken)
        elif instruction.name in ("bar", "barrier"):
            if instruction.modifiers[0] != "sync" or len(instruction.operands) != 1:
                raise UnknownInstruction(instruction.text)
            self._join(waiting, place + 1, taken)

    def _pass_barrier(self, waiting: list[Fronts]) -> list[Fronts]:
        """Release what waits, once the threads of a block that have not returned wait together."""
        barrier = np.full(self.count, -1)
        for fronts in waiting:
            for place, active in fronts.items():
                barrier[active] = place
        for block in np.unique(self.block):
            places = np.unique(barrier[(self.block == block) & (barrier >= 0)])
            if places.size > 1:
                raise RuntimeError(f"threads of block {block} wait at different barriers")
        return waiting

    def _split(self, instruction: Instruction, active: Active) -> tuple[Active, Active]:
        """Threads for which the guard holds, and the others."""
        guard = instruction.guard
        assert guard is not None
        holds = self._register(guard.register)[active] != guard.negated
        if holds.all():
            return active, NOBODY
        indices = np.arange(self.count)[active]
        return indices[holds], indices[~holds]

    def _join(self, fronts: Fronts, place: int, active: Active) -> None:
        if not self._size(active):
            return
        if place in fronts:
            indices = np.arange(self.count)
            active = np.union1d(indices[active], indices[fronts[place]])
        fronts[place] = ALL if self._size(active) == self.count else active

    def _warps(self, active: Active) -> int:
        """Warps with at least one of the threads, in blocks of whole warps."""
        return (
            -(-self.count // WARP) if isinstance(active, slice) else np.unique(active // WARP).size
        )

    def _size(self, active: Active) -> int:
        return self.count if isinstance(active, slice) else active.size

    # -- operands

    def _register(self, name: str) -> np.ndarray:
        if name not in self.registers:
            raise RuntimeError(f"register {name} is read before it is written")
        return self.registers[name]

    def _reader(self, operand: Operand, kind: Kind) -> Callable[[Active], np.ndarray]:
        """A function that fetches an operand as arrays of the type's view."""
        if isinstance(operand, Immediate):
            value = self._constant(operand.value, kind)
        elif isinstance(operand, Symbol) and operand.name in self.symbols:
            value = self._constant(self.symbols[operand.name], kind)
        elif isinstance(operand, Symbol) and operand.name in self.special:
            return lambda active: self.special[operand.name][active].view(kind.dtype)
        elif isinstance(operand, Register):
            name = operand.name

            def read(active: Active) -> np.ndarray:
                bits = self._register(name)[active]
                return bits.astype(kind.storage, copy=False).view(kind.dtype)

            return read
        else:
            raise UnknownInstruction(f"operand {operand}")
        return lambda active: value

    @staticmethod
    def _constant(value: int, kind: Kind) -> np.ndarray:
        if kind == PRED:
            return np.array([bool(value)])
        return np.array([value & ((1 << kind.bits) - 1)], kind.storage).view(kind.dtype)

    def _writer(self, operand: Operand, kind: Kind) -> Callable[[Active, np.ndarray], None]:
        """A function that stores a result; a wider register is filled by extension."""
        if operand == Symbol("_"):
            return lambda active, value: None
        if not isinstance(operand, Register):
            raise UnknownInstruction(f"result {operand}")
        name, held = operand.name, self.function.registers[operand.name]
        signed = kind.letter == "s" and held.bits > kind.bits

        def write(active: Active, value: np.ndarray) -> None:
            if name not in self.registers:
                self.registers[name] = np.zeros(self.count, held.storage)
            bits = value.astype(f"i{held.bytes}") if signed else value.view(kind.storage)
            self.registers[name][active] = bits.view(held.storage) if signed else bits

        return write

    # -- instructions

    def _decode(self, i: Instruction) -> Step:
        """The action of an instruction, found once."""
        if i.name in ("bra", "ret", "exit", "bar", "barrier", *NO_EFFECT):
            return lambda active: None
        if i.name in ("ld", "ldu", "st", "atom", "red"):
            return self._memory_step(i)
        if i.name == "mov" and any(isinstance(o, tuple) for o in i.operands):
            return self._vector_move(i)
        if i.name == "cvta" and "global" not in i.modifiers:
            raise UnknownInstruction(i.text)
        what = operation(i)
        write = self._writer(i.operands[0], what.result)
        if len(i.operands) != 1 + len(what.sources):
            raise UnknownInstruction(i.text)
        readers = [self._reader(o, k) for o, k in zip(i.operands[1:], what.sources, strict=True)]

        def step(active: Active) -> None:
            result = what.compute(*(read(active) for read in readers))
            write(active, np.asarray(result, what.result.dtype))

        return step

    def _vector_move(self, i: Instruction) -> Step:
        """``mov.b64 {%r1, %r2}, %rd`` and back."""
        into, source = i.operands
        whole = i.kinds[0]
        parts = into if isinstance(into, tuple) else source
        assert isinstance(parts, tuple)
        part = Kind("b", whole.bits // len(parts))
        if isinstance(into, tuple):
            read = self._reader(source, whole)
            writers = [self._writer(o, part) for o in into]

            def unpack(active: Active) -> None:
                for place, write in enumerate(writers):
                    shifted = read(active) >> whole.storage.type(place * part.bits)
                    write(active, shifted.astype(part.storage))

            return unpack
        readers = [self._reader(o, part) for o in parts]
        write = self._writer(into, whole)

        def pack(active: Active) -> None:
            result = np.zeros(1, whole.storage)
            for place, read in enumerate(readers):
                shift = whole.storage.type(place * part.bits)
                result = result | (read(active).astype(whole.storage) << shift)
            write(active, result)

        return pack

    def _memory_step(self, i: Instruction) -> Step:
        into = i.operands[0] if i.name in ("st", "red") else i.operands[1]
        if not isinstance(into, Address):
            raise UnknownInstruction(i.text)
        if "param" in i.modifiers:
            assert isinstance(into.base, Symbol)
            write = self._writer(i.operands[0], i.kinds[0])
            value = self.params[into.base.name].view(i.kinds[0].dtype)
            return lambda active: write(active, value)
        locate = self._locator(i, into)
        if i.name in ("atom", "red"):
            return self._atomic_step(i, locate)
        values = i.operands[1] if i.name == "st" else i.operands[0]
        vector = values if isinstance(values, tuple) else (values,)
        kind, count = i.kinds[0], len(vector)
        if i.name == "st":
            readers = [self._reader(v, kind) for v in vector]

            def write_memory(active: Active) -> None:
                rows = np.empty((self._size(active), count), kind.storage)
                for column, read in enumerate(readers):
                    rows[:, column] = read(active).view(kind.storage)
                store(locate(active, kind.bytes, count), rows)

            return write_memory
        writers = [self._writer(v, kind) for v in vector]

        def read_memory(active: Active) -> None:
            shape = (self._size(active), count)
            rows = load(locate(active, kind.bytes, count), shape, kind.bytes)
            for column, write in enumerate(writers):
                write(active, np.ascontiguousarray(rows[:, column]).view(kind.dtype))

        return read_memory

    def _locator(self, i: Instruction, address: Address) -> Callable[[Active, int, int], Cells]:
        """A function that finds the cells which an address operand means."""
        base, held = address.base, U64
        if isinstance(base, Register):
            held = Kind("u", self.function.registers[base.name].bits)
        offset = held.storage.type(address.offset % (1 << held.bits))
        read = self._reader(base, held)
        shared = any(m.split("::")[0] == "shared" for m in i.modifiers)
        if not shared and not {"global", "const"} & set(i.modifiers):
            raise UnknownInstruction(i.text)

        def locate(active: Active, width: int, count: int) -> Cells:
            addresses = np.broadcast_to(read(active) + offset, self._size(active))
            if shared:
                return self.shared.cells(addresses, self.block[active], width, count)
            return self.memory.cells(addresses, width, count)

        return locate

    def _atomic_step(self, i: Instruction, locate: Callable[[Active, int, int], Cells]) -> Step:
        kind, name = i.kinds[0], next((m for m in i.modifiers if m in ATOMIC), None)
        if name is None or (kind.is_float and name not in ("add", "exch")):
            raise UnknownInstruction(i.text)
        sources = i.operands[1:] if i.name == "red" else i.operands[2:]
        readers = [self._reader(o, kind) for o in sources]
        write = None if i.name == "red" else self._writer(i.operands[0], kind)

        def step(active: Active) -> None:
            size = self._size(active)
            values = [np.broadcast_to(read(active), size) for read in readers]
            found = update(locate(active, kind.bytes, 1), ATOMIC[name], *values)
            if write is not None:
                write(active, found)

        return step


ATOMIC: dict[str, Compute] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}
