"""What each instruction of PTX does to the threads of a group: functions of a `Machine`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.ptx.machine import LANES, SHARED
from tests.ptx.memory import Fault
from tests.ptx.parse import Kernel, Name, Number, Register

FLOATS = {"f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8")}
TYPES = {
    f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}")
    for kind in "sub" for bits in (8, 16, 32, 64)
} | FLOATS | {"pred": np.dtype(bool), "bf16": np.dtype("u2"), "tf32": np.dtype("u4")}  # fmt: skip
_COLLECTIVE = ("shfl", "redux", "mma", "ldmatrix", "stmatrix")
_WHOLE = {"rmi": np.floor, "rpi": np.ceil, "rni": np.rint, "rzi": np.trunc}
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


class Unsupported(Exception):
    """An opcode that nobody has written here."""


@dataclass
class Step:
    kind: str
    run: object
    guard: Register | None
    guarded_by_false: bool
    target: int
    is_collective: bool


@dataclass
class Program:
    steps: list[Step] = field(default_factory=list)
    granules: dict[str, int] = field(default_factory=dict)  # of each space, bytes of the least access


def build(kernel: Kernel) -> Program:
    program = Program(granules={"shared": 8, "global": 8})
    kinds = {"bra": "branch", "ret": "return", "bar.sync": "barrier"}
    for at in kernel.instructions:
        kind = kinds.get(at.opcode if at.parts[0] == "bar" else at.parts[0], "run")
        target = kernel.labels[at.operands[0].text] if kind == "branch" else 0
        try:
            run = _MAKERS[at.parts[0]](at, kernel) if kind == "run" else None
        except (KeyError, IndexError) as error:
            raise Unsupported(f"{kernel.name}, line {at.line}: {at.opcode}") from error
        for space, size in program.granules.items():
            if at.parts[0] in ("ld", "st", "atom") and at.parts[1] == space:
                program.granules[space] = min(size, TYPES[at.parts[-1]].itemsize)
            elif at.parts[0] in ("cp", "ldmatrix", "stmatrix"):
                program.granules[space] = min(size, 4)
        collective = at.parts[0] in _COLLECTIVE or at.opcode.startswith("bar.warp")
        program.steps.append(Step(kind, run, at.guard, at.guarded_by_false, target, collective))
    return program


# Operands.


def _number(bits, kind):
    if kind.kind == "b":
        return np.bool_(bits != 0)
    size = kind.itemsize
    return np.frombuffer((bits & (1 << 8 * size) - 1).to_bytes(size, "little"), kind)[0]


def _of_register(operand):
    return np.dtype(bool if operand.bits == 1 else f"u{operand.bits // 8}")


def _reader(operand, kind):
    """A function of the machine: the operand's values as this type, of the group or one for all."""
    kind = TYPES[kind]
    if isinstance(operand, Number) or operand == Name("global_smem"):
        value = _number(operand.bits if isinstance(operand, Number) else SHARED, kind)
        return lambda m: value
    if isinstance(operand, Name):
        return lambda m: m.some(m.special[operand.text]).view(kind)
    number, stored = operand.number, _of_register(operand)
    noise = _number(-1, stored)  # lanes that a reduction has no use for read what nothing has written
    if stored.itemsize < kind.itemsize:
        raise KeyError(operand)

    def read(m):
        value = m.registers[number]
        value = noise if value is None else m.some(value)
        return value.view(kind) if stored.itemsize == kind.itemsize else _narrowed(value, kind)

    return read


def _narrowed(value, kind):
    return value.astype(f"u{kind.itemsize}").view(kind)


def _full(m, values):
    return values if values.ndim else np.full(m.count(), values)


def _writer(operand):
    """A function of the machine and of values, which it keeps: narrower ones are extended."""
    if isinstance(operand, Name):  # _, a sink
        return lambda m, values: None
    number, kind = operand.number, _of_register(operand)

    def write(m, values):
        if values.dtype != kind:
            if values.dtype.itemsize != kind.itemsize:
                values = values.astype(f"{'i' if values.dtype.kind == 'i' else 'u'}{kind.itemsize}")
            values = values.view(kind)
        if m.idx is None:
            m.registers[number] = values
            return
        old = m.registers[number]
        if old is None or not old.ndim:
            old = m.registers[number] = np.full(m.n, _number(-1, kind) if old is None else old, kind)
        old[m.idx] = values

    return write


def _pure(at, function, *kinds):
    """An instruction that computes its first operand from the others."""
    write = _writer(at.operands[0])
    reads = [_reader(*pair) for pair in zip(at.operands[1:], kinds, strict=True)]
    if len(reads) == 1:
        return lambda m: write(m, function(reads[0](m)))
    if len(reads) == 2:
        return lambda m: write(m, function(reads[0](m), reads[1](m)))
    return lambda m: write(m, function(*(read(m) for read in reads)))


# Arithmetic.


def _flushed(x):
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def _all_of_one_type(function):
    def make(at, kernel):
        kinds = [at.parts[-1]] * (len(at.operands) - 1)
        if "ftz" in at.parts:
            return _pure(at, lambda *x: _flushed(function(*map(_flushed, x))), *kinds)
        return _pure(at, function, *kinds)

    return make


def _wide(x):
    return x.astype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")


def _mul(at, kernel):
    function = np.multiply
    if "wide" in at.parts:
        function = lambda a, b: _wide(a) * _wide(b)  # noqa: E731
    return _pure(at, _high if "hi" in at.parts else function, at.parts[-1], at.parts[-1])


def _high(a, b):
    """The upper half of the product of numbers with sign."""
    half = a.dtype.type(4 * a.dtype.itemsize)
    low = a.dtype.type((1 << int(half)) - 1)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    middle = a_high * b_low + ((a_low * b_low).view(unsigned) >> unsigned.type(half)).view(a.dtype)
    return a_high * b_high + (middle >> half) + ((a_low * b_high + (middle & low)) >> half)


def _mad(at, kernel):
    kind = at.parts[-1]
    if "wide" in at.parts:
        double = f"{kind[0]}{2 * int(kind[1:])}"
        return _pure(at, lambda a, b, c: _wide(a) * _wide(b) + c, kind, kind, double)
    return _pure(at, lambda a, b, c: a * b + c, kind, kind, kind)


def _two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _fma32(a, b, c):
    """Rounded once: the sum in float64 is made odd where it is not exact, and rounded then."""
    a, b, c = (np.atleast_1d(x).astype(np.float64) for x in (a, b, c))
    total, error = _two_sum(a * b, c)
    bits = total.view(np.int64)
    is_even = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    bits = bits + np.where(is_even, np.where((error > 0) == (total > 0), 1, -1), 0)
    return bits.view(np.float64).astype(np.float32)


def _fma64(a, b, c):
    """Rounded once but for halves of the last place: product and sum with their errors."""
    product = a * b
    high_a, high_b = (np.float64(134217729) * x for x in (a, b))
    high_a, high_b = high_a - (high_a - a), high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    total, rest = _two_sum(product, c)
    exact = total + (rest + error)
    return np.where(np.isfinite(exact), exact, product + c)


def _fma(at, kernel):
    kind = at.parts[-1]
    return _pure(at, {"f32": _fma32, "f64": _fma64}[kind], kind, kind, kind)


def _div(a, b):
    if a.dtype.kind == "f":
        return a / b
    return (a - np.fmod(a, b)) // np.where(b == 0, b.dtype.type(1), b)


def _shift(function):
    def make(at, kernel):
        kind, bits = at.parts[-1], 8 * TYPES[at.parts[-1]].itemsize

        def shift(x, by):
            moved = function(x, np.minimum(by, by.dtype.type(bits - 1)).astype(x.dtype))
            keeps = kind[0] == "s" and function is np.right_shift
            return moved if keeps else np.where(by >= bits, x.dtype.type(0), moved)

        return _pure(at, shift, kind, "u32")

    return make


def _bfe(at, kernel):
    def extract(x, place, count):
        bits, place, count = 8 * x.dtype.itemsize, place.astype(np.int64), count.astype(np.int64)
        left = np.maximum(bits - place - count, 0).astype(x.dtype)
        return np.where(count == 0, x.dtype.type(0), (x << left) >> (bits - count).astype(x.dtype))

    return _pure(at, extract, at.parts[-1], "u32", "u32")


def _prmt(at, kernel):
    choices = [at.operands[3].bits >> 4 * n & 15 for n in range(4)]

    def permute(a, b, _):
        both, out = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32)), np.uint32(0)
        for n, choice in enumerate(choices):
            byte = (both >> np.uint64(8 * (choice & 7))) & np.uint64(255)
            byte = np.where(byte > 127, 255, 0) if choice & 8 else byte
            out = out | (byte.astype(np.uint32) << np.uint32(8 * n))
        return out

    return _pure(at, permute, "u32", "u32", "u32")


def _approximate(function):
    """Exact here, rounded once."""
    return _all_of_one_type(lambda x: function(x.astype(np.float64)).astype(x.dtype))


def _setp(at, kernel):
    name, kind = at.parts[1], at.parts[-1]

    def compare(a, b):
        no_number = np.isnan(a) | np.isnan(b) if kind in FLOATS else np.bool_(False)
        if name in ("num", "nan"):
            return no_number == (name == "nan")
        if name[-1] == "u":
            return _COMPARE[name[:-1]](a, b) | no_number
        return _COMPARE[name](a, b) & ~no_number

    if name not in ("num", "nan") and name[:2] not in _COMPARE:
        raise KeyError(name)
    return _pure(at, compare if kind in FLOATS else _COMPARE[name], kind, kind)


def _selp(at, kernel):
    return _pure(at, lambda a, b, p: np.where(p, a, b), at.parts[-1], at.parts[-1], "pred")


def _mov(at, kernel):
    (target, source), whole = at.operands, TYPES[at.parts[-1]]
    if isinstance(target, tuple):
        bits = 8 * whole.itemsize // len(target)
        read, writes = _reader(source, at.parts[-1]), [_writer(one) for one in target]

        def split(m):
            values = read(m)
            for n, write in enumerate(writes):
                write(m, (values >> whole.type(bits * n)).astype(f"u{bits // 8}"))

        return split
    if isinstance(source, tuple):
        bits = 8 * whole.itemsize // len(source)
        write, reads = _writer(target), [_reader(one, f"u{bits}") for one in source]

        def join(m):
            parts = (read(m).astype(whole) << whole.type(bits * n) for n, read in enumerate(reads))
            write(m, sum(parts, whole.type(0)))

        return join
    return _pure(at, np.copy if at.parts[-1] == "pred" else lambda x: x.copy(), at.parts[-1])


def _cvt(at, kernel):
    to, of, how = *at.parts[-2:], at.parts[1:-2]
    if to.endswith("x2"):
        halves = lambda x: _converted(x, to[:-2], of, how).view(np.uint16).astype(np.uint32)  # noqa: E731
        return _pure(at, lambda high, low: halves(low) | halves(high) << np.uint32(16), of, of)
    return _pure(at, lambda x: _converted(x, to, of, how), of)


def _converted(x, to, of, how):
    if of == "bf16":
        x, of = (x.astype(np.uint32) << np.uint32(16)).view(np.float32), "f32"
    x = _flushed(x) if "ftz" in how else x
    if to in ("tf32", "bf16"):
        bits = x.view(np.uint32)
        if to == "tf32":
            return np.where(np.isfinite(x), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)
    kind = TYPES[to]
    if of not in FLOATS:
        return x.astype(kind)
    for name in how:
        x = _WHOLE[name](x) if name in _WHOLE else x
    if to in FLOATS:
        return x.astype(kind)
    limits = np.iinfo(kind)
    inside = np.clip(x.astype(np.float64), limits.min, limits.max)
    is_most = inside >= float(limits.max)
    return np.where(is_most, limits.max, np.where(is_most | np.isnan(inside), 0, inside).astype(kind))


# Memory.


def _address(operand, space="global"):
    base = _reader(operand.base, "u64" if getattr(operand.base, "bits", 32) == 64 else "u32")

    def read(m):
        addresses = _full(m, (base(m).astype(np.int64) + operand.offset).astype(np.uint64))
        if space == "global":
            return addresses
        offsets = addresses - np.uint64(SHARED)  # in the part of the thread's own block
        if (bad := offsets >= max(m.shared_bytes, 1)).any():
            raise Fault(f"shared memory of {m.shared_bytes} bytes has no byte {int(offsets[bad][0])}")
        return m.some(m.shared_start) + offsets

    return read


def _ld(at, kernel):
    targets, kind = at.operands[0], TYPES[at.parts[-1]]
    writes = [_writer(target) for target in (targets if isinstance(targets, tuple) else (targets,))]
    if at.parts[1] == "param":
        place = kernel.parameters[at.operands[1].base.text]
        return lambda m: writes[0](m, _number(int(m.arguments[place]), kind))
    space, read = at.parts[1], _address(at.operands[1], at.parts[1])

    def load(m):
        found = m.spaces[space].load(read(m), kind.itemsize, len(writes), m.some(m.keys))
        for write, values in zip(writes, found, strict=True):
            write(m, values.view(kind))

    return load


def _st(at, kernel):
    values, kind = at.operands[1], TYPES[at.parts[-1]]
    reads = [_reader(v, at.parts[-1]) for v in (values if isinstance(values, tuple) else (values,))]
    space, read = at.parts[1], _address(at.operands[0], at.parts[1])

    def store(m):
        new = np.stack([_full(m, value(m)) for value in reads]).view(f"u{kind.itemsize}")
        m.spaces[space].store(read(m), new, kind.itemsize, m.some(m.keys))

    return store


def _atom(at, kernel):
    function = {"min": min, "max": max, "add": lambda a, b: a + b}[at.parts[-2]]
    kind, read = TYPES[at.parts[-1]], _address(at.operands[1])
    write, value = _writer(at.operands[0]), _reader(at.operands[2], at.parts[-1])

    def change(m):
        addresses, new, keys, old = read(m), _full(m, value(m)), m.some(m.keys), np.empty(m.count(), kind)
        for n in m.random.permutation(m.count()):
            one = slice(n, n + 1)
            old[one], noted = m.spaces["global"].element(addresses[one], kind, keys[one])
            noted[:] = _number(int(function(old[n], new[n])), kind)
        write(m, old)

    return change


def _cp(at, kernel):
    """cp.async: the target is noise until those who have asked wait."""
    if at.parts[2] == "commit_group":
        return lambda m: m.groups.__setitem__(
            slice(None) if m.idx is None else m.idx, m.some(m.groups) + 1
        )
    if at.parts[2] == "wait_group":
        return lambda m: _wait(m, at.operands[0].bits)
    target, source = _address(at.operands[0], "shared"), _address(at.operands[1])
    size = at.operands[2]
    count = _reader(at.operands[3] if len(at.operands) > 3 else size, "u32")

    def copy(m):
        threads = np.arange(m.n) if m.idx is None else m.idx
        to, of, length = target(m), source(m), _full(m, count(m))
        noise = m.random.integers(0, 1 << 32, (size.bits // 4, len(to)), np.uint32)
        m.spaces["shared"].store(to, noise, 4, m.keys[threads])
        if (read := length > 0).any():  # which may be now, or later
            m.spaces["global"].load(of[read], 4, size.bits // 4, m.keys[threads[read]])
        m.copies.append([threads, to, of, length, np.full(len(to), size.bits), m.groups[threads]])

    return copy


def _wait(m, left):
    waits, under_way = np.zeros(m.n, bool), []
    waits[slice(None) if m.idx is None else m.idx] = True
    for copy in m.copies:
        threads, groups = copy[0], copy[-1]
        done = waits[threads] & (groups < m.groups[threads] - left)
        if done.any():
            _arrive(m, *(part[done] for part in copy[:-1]))
        under_way.append([part[~done] for part in copy])
    m.copies = [copy for copy in under_way if len(copy[0])]


def _arrive(m, threads, to, of, length, sizes):
    """What is read, and zeros behind it."""
    for n in range(sizes[0] // 4):
        read, at, keys = length // 4 > n, np.uint64(4 * n), m.keys[threads]
        values = np.zeros((1, len(to)), np.uint32)
        if read.any():
            values[:, read] = m.spaces["global"].load(of[read] + at, 4, 1, keys[read])
        m.spaces["shared"].store(to + at, values, 4, keys)


# What a warp does together: threads of the group are whole warps.

_LANE = np.arange(LANES)


def _by_warp(m, values):
    return _full(m, values).reshape(-1, LANES)


def _shfl(at, kernel):
    other_of = {"bfly": lambda by: _LANE ^ by, "idx": lambda by: by % LANES}[at.parts[2]]
    write, value, by = _writer(at.operands[0]), *(_reader(one, "u32") for one in at.operands[1:3])

    def shuffle(m):
        other = other_of(_by_warp(m, by(m)).astype(np.int64))
        write(m, np.take_along_axis(_by_warp(m, value(m)), other, 1).reshape(-1))

    return shuffle


def _redux(at, kernel):
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[at.parts[2]]
    write, value = _writer(at.operands[0]), _reader(at.operands[1], at.parts[-1])

    def reduce(m):
        values = _by_warp(m, value(m))
        write(m, np.repeat(function.reduce(values, 1, dtype=values.dtype), LANES))

    return reduce


def _ldmatrix(at, kernel):
    if "trans" in at.parts:
        raise KeyError(at.opcode)
    writes, read = [_writer(target) for target in at.operands[0]], _address(at.operands[1], "shared")

    def load(m):
        rows = _by_warp(m, read(m))
        if (rows & np.uint64(15)).any():
            raise Fault("a row of ldmatrix is not aligned to 16 bytes")
        for n, write in enumerate(writes):
            place = rows[:, 8 * n + _LANE // 4] + (4 * (_LANE % 4)).astype(np.uint64)
            write(m, m.spaces["shared"].load(place.reshape(-1), 4, 1, m.some(m.keys))[0])

    return load


def _stmatrix(at, kernel):
    if "trans" in at.parts:
        raise KeyError(at.opcode)
    read, reads = _address(at.operands[0], "shared"), [_reader(one, "u32") for one in at.operands[1]]

    def store(m):
        rows = _by_warp(m, read(m))
        for n, value in enumerate(reads):
            place = rows[:, 8 * n + _LANE // 4] + (4 * (_LANE % 4)).astype(np.uint64)
            new = _full(m, value(m))[None]
            m.spaces["shared"].store(place.reshape(-1), new, 4, m.some(m.keys))

    return store


_ROW, _COLUMN = _LANE // 4, _LANE % 4
_OF_A = [(_ROW + 8 * (n % 2), _COLUMN + 4 * (n // 2)) for n in range(4)]
_OF_B = [(_COLUMN + 4 * n, _ROW) for n in range(2)]
_OF_C = [(_ROW + 8 * (n // 2), 2 * _COLUMN + n % 2) for n in range(4)]


def _mma(at, kernel):
    """m16n8k8 of tf32: sums of four products and what was summed before, cut off at float32."""
    if "m16n8k8" not in at.parts or "tf32" not in at.parts:
        raise KeyError(at.opcode)
    writes = [_writer(one) for one in at.operands[0]]
    of_a, of_b, of_c = ([_reader(one, "u32") for one in at.operands[n]] for n in (1, 2, 3))

    def gathered(m, reads, places, rows, mask=0xFFFFE000):
        out = np.empty((m.count() // LANES, rows, 8), np.float32)
        for read, (row, column) in zip(reads, places, strict=True):
            out[:, row, column] = (_by_warp(m, read(m)) & np.uint32(mask)).view(np.float32)
        return out.astype(np.float64)

    def multiply(m):
        a, b = gathered(m, of_a, _OF_A, 16), gathered(m, of_b, _OF_B, 8)
        c = gathered(m, of_c, _OF_C, 16, 0xFFFFFFFF)
        for k in (0, 4):
            exact = c + a[:, :, k : k + 4] @ b[:, k : k + 4]
            cut = exact.astype(np.float32)
            c = np.where(np.abs(cut) > np.abs(exact), np.nextafter(cut, np.float32(0)), cut).astype(
                np.float64
            )
        for write, (row, column) in zip(writes, _OF_C, strict=True):
            write(m, c[:, row, column].reshape(-1).astype(np.float32))

    return multiply


def _createpolicy(at, kernel):
    write = _writer(at.operands[0])
    return lambda m: write(m, np.uint64(0))


_MAKERS = {
    **{name: _all_of_one_type(function) for name, function in {
        "add": np.add, "sub": np.subtract, "rem": np.fmod, "min": np.fmin, "max": np.fmax, "abs": np.abs,
        "neg": np.negative, "not": np.invert, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor, "div": _div,
    }.items()},
    **{name: _approximate(function) for name, function in {
        "ex2": np.exp2, "sqrt": np.sqrt, "rcp": np.reciprocal}.items()},
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift), "mul": _mul, "mad": _mad, "fma": _fma,
    "bfe": _bfe, "prmt": _prmt, "mov": _mov, "cvt": _cvt, "setp": _setp, "selp": _selp, "ld": _ld,
    "st": _st, "atom": _atom, "cp": _cp, "shfl": _shfl, "redux": _redux, "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix, "mma": _mma, "createpolicy": _createpolicy,
    "bar": lambda at, kernel: lambda m: m.order_warps(),
}  # fmt: skip
