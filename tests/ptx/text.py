"""PTX text to functions: parameters, variables, registers, instructions with their operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.ptx.kinds import Kind, is_kind, kind


class UnknownInstruction(NotImplementedError):
    """The interpreter does not implement a statement of the PTX text."""


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Immediate:
    """An integer, or the bits of a floating-point number of ``width`` bits."""

    value: int
    width: int | None = None


@dataclass(frozen=True)
class Symbol:
    """A parameter, a variable, a label or a special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Address:
    base: Register | Symbol | Immediate
    offset: int


Operand = Register | Immediate | Symbol | Address | tuple  # a tuple is a vector of operands


@dataclass(frozen=True)
class Guard:
    """``@%p`` or ``@!%p``."""

    register: str
    negated: bool


@dataclass(frozen=True)
class Instruction:
    name: str
    modifiers: tuple[str, ...]
    kinds: tuple[Kind, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str


@dataclass(frozen=True)
class Variable:
    """A ``.shared``, ``.local``, ``.global`` or ``.const`` array."""

    name: str
    space: str
    size: int
    align: int
    content: bytes = b""


@dataclass
class Function:
    name: str
    params: dict[str, Kind] = field(default_factory=dict)
    registers: dict[str, Kind] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Module:
    version: str
    target: str
    variables: list[Variable]
    entries: dict[str, Function]

    @property
    def entry(self) -> Function:
        """The only kernel."""
        (function,) = self.entries.values()
        return function


COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{;]*\{")
DEVICE_FUNCTION = re.compile(r"\.func\b[^{;]*\{")
PARAM = re.compile(r"\.param\s+\.(\w+)(?:\s+\.ptr[^,]*?)?\s+([\w$]+)\s*$")
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)$", re.S)
VARIABLE = re.compile(
    r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
    r"(?:\[(\d*)\])?\s*(?:=\s*(.+))?$",
    re.S,
)
LABEL = re.compile(r"([\w$]+):(?!:)\s*")
GUARD = re.compile(r"@(!?)(%\w+)\s+")
FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


def parse(text: str) -> Module:
    """Read a PTX module."""
    text = COMMENT.sub("", text)
    if DEVICE_FUNCTION.search(text):
        raise UnknownInstruction("device functions (.func): only inlined ones are supported")
    version = re.findall(r"\.version\s+(\S+)", text)[0]
    target = re.findall(r"\.target\s+(\w+)", text)[0]
    entries, outside, end = {}, [], 0
    for match in ENTRY.finditer(text):
        outside.append(text[end : match.start()])
        end = _closing(text, match.end())
        function = Function(match[1], _params(match[2]))
        _read_body(text[match.end() : end - 1], function)
        entries[function.name] = function
    outside.append(text[end:])
    declarations = re.findall(r"\.(?:shared|global|const)\s[^;]*(?=;)", " ".join(outside))
    return Module(version, target, [_variable(each) for each in declarations], entries)


def _closing(text: str, start: int) -> int:
    """Position after the brace that closes the one before ``start``."""
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    raise ValueError("unbalanced braces")


def _params(text: str) -> dict[str, Kind]:
    params = {}
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        match = PARAM.match(declaration)
        if match is None:
            raise UnknownInstruction(f"parameter: {declaration}")
        params[match[2]] = kind(match[1])
    return params


def _variable(declaration: str) -> Variable:
    match = VARIABLE.match(declaration.strip())
    if match is None:
        raise UnknownInstruction(f"variable: {declaration}")
    space, align, type_name, name, count, values = match.groups()
    width = kind(type_name).bytes
    numbers = re.findall(r"-?\w+", values) if values else []
    mask = (1 << 8 * width) - 1
    content = b"".join((int(v, 0) & mask).to_bytes(width, "little") for v in numbers)
    size = width * int(count or 1)
    return Variable(name, space, size, int(align or width), content)


def _read_body(text: str, function: Function) -> None:
    for statement in text.split(";"):
        rest = statement.strip()
        while match := re.match(r"[{}]\s*", rest) or LABEL.match(rest):
            if match[0][0] not in "{}":
                function.labels[match[1]] = len(function.instructions)
            rest = rest[match.end() :]
        if not rest or rest.startswith((".pragma", ".loc", ".file")):
            continue
        if match := REGISTERS.match(rest):
            function.registers.update(_registers(kind(match[1]), match[2]))
        elif rest.startswith("."):
            function.variables.append(_variable(rest))
        else:
            function.instructions.append(_instruction(rest, function))


def _registers(of: Kind, names: str) -> dict[str, Kind]:
    registers = {}
    for name in (part.strip() for part in names.split(",")):
        many = re.match(r"([%\w$]+)<(\d+)>$", name)
        each = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
        registers.update(dict.fromkeys(each, of))
    return registers


def _instruction(text: str, function: Function) -> Instruction:
    guard, rest = None, text
    if match := GUARD.match(text):
        guard, rest = Guard(match[2], match[1] == "!"), text[match.end() :]
    opcode, *arguments = rest.split(maxsplit=1)
    name, *parts = opcode.split(".")
    operands = tuple(_operand(each, function) for each in _split("".join(arguments)))
    kinds = tuple(kind(part) for part in parts if is_kind(part))
    modifiers = tuple(part for part in parts if not is_kind(part))
    return Instruction(name, modifiers, kinds, operands, guard, " ".join(text.split()))


def _split(arguments: str) -> list[str]:
    """Operands, at the commas outside braces and brackets."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", arguments)
    return [part.strip() for part in parts if part.strip()]


def _operand(text: str, function: Function) -> Operand:
    if text.startswith("{"):
        return tuple(_operand(part.strip(), function) for part in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = re.sub(r"\s", "", text[1:-1]).partition("+")
        inner = _operand(base, function)
        assert isinstance(inner, Register | Symbol | Immediate)
        return Address(inner, int(offset or "0", 0))
    if match := FLOAT.match(text):
        return Immediate(int(match[2], 16), 32 if match[1] in "fF" else 64)
    if INTEGER.match(text):
        return Immediate(int(text.rstrip("U"), 0))
    return Register(text) if text in function.registers else Symbol(text)
