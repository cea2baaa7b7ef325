"""Reads PTX: instructions with their operands, registers, labels and parameters of one kernel."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

_WIDTHS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "f32": 32, "b64": 64, "f64": 64}
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([%\w]+)(?:<(\d+)>)?")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s.*?(\w+_param_\d+)")
_LOCATION = re.compile(r"\.loc\s.*//\s*(.*)")


@dataclass(frozen=True)
class Register:
    number: int
    bits: int  # 1: a predicate


@dataclass(frozen=True)
class Number:
    bits: int  # of two's complement or of a float, as long as whoever reads it takes


@dataclass(frozen=True)
class Name:
    """A special register, a parameter, a label, or shared memory."""

    text: str


@dataclass(frozen=True)
class Address:
    base: Register | Number | Name
    offset: int


@dataclass
class Instruction:
    opcode: str
    parts: list[str]  # of the opcode: mul, wide, u32
    operands: list
    guard: Register | None
    guarded_by_false: bool
    line: int  # of the PTX
    source: str  # file:line:column of the kernel


@dataclass
class Kernel:
    name: str = ""
    parameters: dict[str, int] = field(default_factory=dict)  # place of each
    registers: dict[str, Register] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    threads: int = 0


def parse(text: str) -> Kernel:
    kernel, source = Kernel(), ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _LOCATION.search(line):
            source = found[1]
        line = line.split("//")[0].strip()
        if found := re.search(r"\.entry (\w+)", line):
            kernel.name = found[1]
        elif found := _PARAMETER.match(line):
            kernel.parameters[found[2]] = len(kernel.parameters)
        elif line.startswith(".reqntid"):
            kernel.threads = int(line.split()[1])
        elif line.startswith((".section", ".file")):
            break
        elif kernel.name and line:
            _read_line(kernel, line, number, source)
    return kernel


def _read_line(kernel, line, number, source):
    for kind, name, count in _REGISTERS.findall(line):
        names = [f"{name}{n}" for n in range(int(count))] if count else [name]
        for one in names:
            kernel.registers.setdefault(one, Register(len(kernel.registers), _WIDTHS[kind]))
    line = re.sub(r"\.reg[^;]*;", "", line)
    while found := re.match(r"\s*(\$?\w+):(?!:)", line):
        kernel.labels[found[1]] = len(kernel.instructions)
        line = line[found.end() :]
    for statement in line.split(";"):
        statement = re.sub(r"^\s*\{\s+", "", statement).strip()  # a scope of its own
        found = re.match(r"(?:@(!?)([%\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", statement)
        if found is None or statement.startswith((".", "}")):
            continue
        guard = kernel.registers[found[2]] if found[2] else None
        operands = [_operand(kernel, text) for text in _split(found[4])]
        parts = found[3].split(".")
        kernel.instructions.append(
            Instruction(found[3], parts, operands, guard, found[1] == "!", number, source)
        )


def _split(text):
    """At commas outside braces and brackets."""
    return [
        part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text) if part.strip()
    ]


def _operand(kernel, text):
    if text.startswith("{"):
        return tuple(_operand(kernel, part) for part in _split(text.strip("{} ")))
    if text.startswith("["):
        base, _, offset = text.strip("[] ").partition("+")
        return Address(_operand(kernel, base.strip()), int(offset or 0))
    if text in kernel.registers:
        return kernel.registers[text]
    if text[:2] in ("0f", "0d"):
        return Number(int(text[2:], 16))
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+U?|\d+)", text):
        return Number(int(text.rstrip("U"), 0))
    if re.fullmatch(r"-?\d*\.\d+", text):
        return Number(struct.unpack("I", struct.pack("f", float(text)))[0])
    return Name(text)
