"""Cases of products of matrices that a warp holds together: mma.

What must come out is computed here from PTX's own words on where elements are, in Python's
numbers. Inputs are such that no sum is rounded, but for one case that says how far it may be.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ptx_cases import Case, Row

WARP = 32
Grid = dict[tuple[int, int], float]
Spot = Callable[[int, int, int], tuple[int, int]]


def f16_of(bits: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


def f32_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def f64_of(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def signed(bits: int, width: int) -> float:
    return float(bits - (1 << width) if bits >> (width - 1) else bits)


def e4m3_of(bits: int) -> float:
    exponent, fraction = bits >> 3 & 15, bits & 7
    size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return -size if bits & 0x80 else size


@dataclass(frozen=True)
class Element:
    """A type of elements: its bits, the kind of its inputs, and its number."""

    bits: int
    kind: str
    value: Callable[[int], float]


ELEMENTS = {
    "f16": Element(16, "small_f16x2", f16_of),
    "bf16": Element(16, "small_bf16x2", lambda v: f32_of(v << 16)),
    "tf32": Element(32, "small_f32", f32_of),
    "f32": Element(32, "small_f32", f32_of),
    "f64": Element(64, "small_f64", f64_of),
    "s32": Element(32, "x32", lambda v: signed(v, 32)),
    "s8": Element(8, "x32", lambda v: signed(v, 8)),
    "u8": Element(8, "x32", float),
    "s4": Element(4, "x32", lambda v: signed(v, 4)),
    "u4": Element(4, "x32", float),
    "b1": Element(1, "x32", float),
    "e4m3": Element(8, "small_e4m3x4", e4m3_of),
    "e5m2": Element(8, "small_e5m2x4", lambda v: f16_of(v << 8)),
}


def encoded(value: float, kind: str, satfinite: bool = False) -> int:
    if kind == "s32":
        whole = int(value)
        if satfinite:
            whole = max(-(2**31), min(2**31 - 1, whole))
        return whole & 0xFFFFFFFF
    if kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if kind == "f32":
        if math.isnan(value):
            return 0x7FFFFFFF
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return 0x7FFF if math.isnan(value) else int(struct.unpack("<H", struct.pack("<e", value))[0])


def registers_of(kind: str, elements: int) -> int:
    """Of each lane."""
    return max(1, elements * min(ELEMENTS[kind].bits, 32) // 32)


# --- where PTX puts an element: group is %laneid >> 2, t is %laneid % 4 -------------------------

A_SPOTS: dict[tuple[str, str], Spot] = {}
B_SPOTS: dict[tuple[str, str], Spot] = {}


def at(shape: str, kinds: str, a: Spot, b: Spot) -> None:
    for kind in kinds.split():
        A_SPOTS[shape, kind] = a
        B_SPOTS[shape, kind] = b


at(
    "m16n8k8",
    "f16 bf16",
    lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    lambda g, t, i: (t * 2 + i, g),
)
at(
    "m16n8k16",
    "f16 bf16",
    lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (8 if i >= 4 else 0)),
    lambda g, t, i: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
)
at("m16n8k4", "tf32 f64", lambda g, t, i: (g + 8 * i, t), lambda g, t, i: (t, g))
at(
    "m16n8k8",
    "tf32 f64",
    lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    lambda g, t, i: (t if i == 0 else t + 4, g),
)
at("m8n8k4", "f64", lambda g, t, i: (g, t), lambda g, t, i: (t, g))
at(
    "m16n8k16",
    "f64",
    lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
    lambda g, t, i: (t + i * 4, g),
)
at("m8n8k16", "s8 u8", lambda g, t, i: (g, t * 4 + i), lambda g, t, i: (t * 4 + i, g))
at(
    "m16n8k16",
    "s8 u8",
    lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    lambda g, t, i: (t * 4 + i, g),
)
at(
    "m16n8k32",
    "s8 u8 e4m3 e5m2",
    lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
    lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
)
at("m8n8k32", "s4 u4", lambda g, t, i: (g, t * 8 + i), lambda g, t, i: (t * 8 + i, g))
at(
    "m16n8k32",
    "s4 u4",
    lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    lambda g, t, i: (t * 8 + i, g),
)
at(
    "m16n8k64",
    "s4 u4",
    lambda g, t, i: (
        g if i < 8 or 16 <= i < 24 else g + 8,
        t * 8 + (i & 7) + (0 if i < 16 else 32),
    ),
    lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g),
)
at("m8n8k128", "b1", lambda g, t, i: (g, t * 32 + i), lambda g, t, i: (t * 32 + i, g))
at(
    "m16n8k128",
    "b1",
    lambda g, t, i: (g if i < 32 else g + 8, t * 32 + (i & 31)),
    lambda g, t, i: (t * 32 + i, g),
)
at(
    "m16n8k256",
    "b1",
    lambda g, t, i: (g if i % 64 < 32 else g + 8, t * 32 + (i & 31) + (0 if i < 64 else 128)),
    lambda g, t, i: (t * 32 + (i & 31) + (0 if i < 32 else 128), g),
)


def c_spot(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, t * 2 + (i & 1))


def sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


@dataclass(frozen=True)
class Product:
    """One mma: its shape and the types of d, a, b, c."""

    shape: str
    d: str
    a: str
    b: str
    c: str
    tail: str = ""  # .satfinite, .xor.popc …
    small: str = ""  # another kind for A's and B's inputs

    @property
    def counts(self) -> tuple[int, int, int]:
        """Elements of A, B and C in each lane."""
        m, n, k = sizes(self.shape)
        return m * k // WARP, k * n // WARP, m * n // WARP

    def kinds(self) -> tuple[str, ...]:
        counts = self.counts
        kinds: list[str] = []
        for name, count in zip((self.a, self.b, self.c), counts, strict=True):
            kind = ELEMENTS[name].kind
            if self.small and name not in ("f32", "s32"):
                kind = self.small
            kinds += [kind] * registers_of(name, count)
        return tuple(kinds)

    def formula(self, values: Sequence[Row]) -> list[Row]:
        return [row for i in range(0, len(values), WARP) for row in self.warp(values[i : i + WARP])]

    def warp(self, rows: Sequence[Row]) -> list[Row]:
        counts = self.counts
        first, grids = 0, []
        spots = (A_SPOTS[self.shape, self.a], B_SPOTS[self.shape, self.b], c_spot)
        for name, count, spot in zip((self.a, self.b, self.c), counts, spots, strict=True):
            grids.append(collect(rows, first, name, count, spot))
            first += registers_of(name, count)
        d = multiply(grids[0], grids[1], grids[2], sizes(self.shape)[2], self.join)
        return [self.given(d, lane) for lane in range(WARP)]

    def join(self, a: float, b: float) -> float:
        if ".xor" in self.tail:
            return float(a != b)
        return a * b

    def given(self, d: Grid, lane: int) -> Row:
        count, sat = self.counts[2], ".satfinite" in self.tail
        words = [encoded(d[c_spot(lane >> 2, lane % 4, i)], self.d, sat) for i in range(count)]
        if self.d == "f16":
            words = [words[i] | words[i + 1] << 16 for i in range(0, count, 2)]
        return tuple(words)

    @property
    def outputs(self) -> tuple[str, ...]:
        word = "b64" if self.d == "f64" else "b32"
        return (word,) * registers_of(self.d, self.counts[2])

    def case(self, op: str, name: str = "", absolute: float = 0.0) -> Case:
        numbers = iter(range(64))
        parts = [
            "{" + ", ".join(f"%a{next(numbers)}" for _ in range(registers_of(k, c))) + "}"
            for k, c in zip((self.a, self.b, self.c), self.counts, strict=True)
        ]
        d = "{" + ", ".join(f"%d{i}" for i in range(len(self.outputs))) + "}"
        outputs = ("f32",) * len(self.outputs) if absolute else self.outputs
        return Case(
            name or op,
            f"{op} {d}, {', '.join(parts)};",
            self.kinds(),
            outputs,
            absolute=absolute,
            target="sm_90",
            version="8.4",
            threads=64,
            formula=self.formula,
        )


def collect(rows: Sequence[Row], first: int, name: str, count: int, spot: Spot) -> Grid:
    """The matrix that the lanes of a warp hold in registers from the first-th on."""
    element = ELEMENTS[name]
    per = max(1, 32 // element.bits)
    grid: Grid = {}
    for lane, row in enumerate(rows):
        for i in range(count):
            word = row[first + i // per]
            bits = word >> (element.bits * (i % per)) & ((1 << element.bits) - 1)
            if name == "tf32":
                bits &= 0xFFFFE000
            grid[spot(lane >> 2, lane % 4, i)] = element.value(bits)
    return grid


def multiply(a: Grid, b: Grid, c: Grid, depth: int, join: Callable[[float, float], float]) -> Grid:
    d: Grid = {}
    for (row, column), start in c.items():
        total = 0.0
        for k in range(depth):
            total += join(a[row, k], b[k, column])
        d[row, column] = total + start
    return d


def products() -> Iterator[Case]:
    floats = [("m16n8k8", "f16"), ("m16n8k16", "f16"), ("m16n8k8", "bf16"), ("m16n8k16", "bf16")]
    floats += [("m16n8k4", "tf32"), ("m16n8k8", "tf32")]
    for shape, kind in floats:
        yield plain(shape, "f32", kind, kind, "f32")
    for shape in ("m16n8k8", "m16n8k16"):
        yield plain(shape, "f16", "f16", "f16", "f16")
    for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
        yield plain(shape, "f64", "f64", "f64", "f64")
    for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")):
        yield plain("m16n8k32", "f32", a, b, "f32")
    for shape in ("m8n8k16", "m16n8k16", "m16n8k32"):
        for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8")):
            yield plain(shape, "s32", a, b, "s32")
    yield plain("m16n8k32", "s32", "s8", "u8", "s32", ".satfinite")
    for shape in ("m8n8k32", "m16n8k32", "m16n8k64"):
        for a, b in (("s4", "s4"), ("u4", "s4"), ("u4", "u4")):
            yield plain(shape, "s32", a, b, "s32")
    for shape in ("m8n8k128", "m16n8k128", "m16n8k256"):
        for join in (".xor.popc", ".and.popc"):
            yield plain(shape, "s32", "b1", "b1", "s32", join)
    op = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    limits = Product("m16n8k16", "f32", "f16", "f16", "f32", small="limit_f16x2")
    yield limits.case(op, f"{op} of infinities")
    wide = Product("m16n8k16", "f32", "f16", "f16", "f32", small="fraction_f16x2")
    yield wide.case(op, f"{op} of fractions", absolute=2.0**-14)
    yield quads()


def plain(shape: str, d: str, a: str, b: str, c: str, tail: str = "") -> Case:
    op = f"mma.sync.aligned.{shape}.row.col{tail}.{d}.{a}.{b}.{c}"
    if "popc" in tail:
        op = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{c}{tail}"
    return Product(shape, d, a, b, c, tail).case(op)


def quads() -> Case:
    """mma.m8n8k4 of f16: lanes 0-3 and 16-19 have a product of their own, and so on."""

    def lower(lane: int) -> int:
        return 0 if lane < 16 else 4

    def formula(values: Sequence[Row]) -> list[Row]:
        return [row for i in range(0, len(values), WARP) for row in warp(values[i : i + WARP])]

    def half(row: Row, i: int) -> float:
        return f16_of(row[i // 2] >> (16 * (i % 2)) & 0xFFFF)

    def spot(lane: int, i: int) -> tuple[int, int]:
        return (lane & 1) + (i & 2) + lower(lane), (i & 4) + (lane & 2) + (i & 1)

    def warp(rows: Sequence[Row]) -> list[Row]:
        given: dict[int, Row] = {}
        for first in range(0, 16, 4):
            lanes = [*range(first, first + 4), *range(first + 16, first + 20)]
            a = {(n % 4 + lower(n), i): half(rows[n], i) for n in lanes for i in range(4)}
            b = {(i, n % 4 + lower(n)): half(rows[n][2:], i) for n in lanes for i in range(4)}
            c = {spot(n, i): f32_of(rows[n][4 + i]) for n in lanes for i in range(8)}
            d = multiply(a, b, c, 4, lambda x, y: x * y)
            for n in lanes:
                given[n] = tuple(encoded(d[spot(n, i)], "f32") for i in range(8))
        return [given[n] for n in range(WARP)]

    op = "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32"
    c = ", ".join(f"%a{i}" for i in range(4, 12))
    return Case(
        op,
        f"{op} {{{', '.join(f'%d{i}' for i in range(8))}}}, {{%a0, %a1}}, {{%a2, %a3}}, {{{c}}};",
        ("small_f16x2",) * 4 + ("small_f32",) * 8,
        ("b32",) * 8,
        target="sm_70",
        threads=64,
        formula=formula,
    )


def every_case() -> Iterator[Case]:
    yield from products()
