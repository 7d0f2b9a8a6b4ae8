"""Cases of products with a sparse A: mma.sp.

Of each chunk of a row A has half the columns, and metadata says which. Where its bits lie is taken
from PTX's figures: of f16, bf16 and tf32 a lane has 16 bits of each of two rows, of others a
register of one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ptx_cases import Case, Row
from ptx_matrix import (
    ELEMENTS,
    WARP,
    Grid,
    Product,
    Spot,
    c_spot,
    collect,
    multiply,
    registers_of,
    sizes,
)

#: Two places of a chunk in rising order; of tf32, where a chunk has two columns, one.
PAIRS = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)
SINGLES = (0b0100, 0b1110)


@dataclass(frozen=True)
class Packing:
    """How a type is packed: columns of a chunk, columns that go together."""

    chunk: int
    group: int

    @staticmethod
    def of(bits: int) -> Packing:
        return {32: Packing(2, 1), 4: Packing(8, 2)}.get(bits, Packing(4, 1))


def columns_of(nibble: int, bits: int) -> list[int]:
    """The columns of a chunk that are there."""
    packing = Packing.of(bits)
    places = [nibble & 3, nibble >> 2]
    if packing.chunk == 2:
        return [places[0] >> 1]
    return [place * packing.group + i for place in places for i in range(packing.group)]


def nibble_of(words: Sequence[int], row: int, chunk: int, chunks: int, bits: int, f: int) -> int:
    """Four bits of the metadata that the lanes of a warp hold."""
    first = 4 * (row % 8) + f * chunks // 4
    if bits >= 16:
        return words[first + chunk // 4] >> (16 * (row // 8) + 4 * (chunk % 4)) & 15
    return words[first + row // 8 + 2 * (chunk // 8)] >> (4 * (chunk % 8)) & 15


def spread(packed: Grid, words: Sequence[int], depth: int, bits: int, f: int) -> Grid:
    """The whole of 16 rows of A."""
    size = Packing.of(bits).chunk
    whole = {(row, k): 0.0 for row in range(16) for k in range(depth)}
    for row in range(16):
        for chunk in range(depth // size):
            nibble = nibble_of(words, row, chunk, depth // size, bits, f)
            for i, column in enumerate(columns_of(nibble, bits)):
                whole[row, chunk * size + column] = packed[row, chunk * size // 2 + i]
    return whole


def metadata(bits: int, source: str, to: str, spare: str) -> str:
    """PTX that makes metadata of any 32 bits: each nibble chooses among what is allowed."""
    choices = SINGLES if bits == 32 else PAIRS
    table = sum(choice << (4 * i) for i, choice in enumerate((choices * 8)[:8]))
    lines = [f"mov.b32 {to}, 0;"]
    for i in range(8):
        lines.append(f"bfe.u32 {spare}, {source}, {4 * i}, 3;\nshl.b32 {spare}, {spare}, 2;")
        lines.append(
            f"shr.u32 {spare}, {table}, {spare};\nbfi.b32 {to}, {spare}, {to}, {4 * i}, 4;"
        )
    return "\n".join(lines)


def chosen(bits: int, word: int) -> int:
    """What `metadata` makes of a word."""
    choices = ((SINGLES if bits == 32 else PAIRS) * 8)[:8]
    return sum(choices[word >> (4 * i) & 7] << (4 * i) for i in range(8))


def lanes_of(element: int, depth: int) -> int:
    """Of four lanes, those that have metadata of a row and the one eight below it."""
    lanes = depth * element // 256
    return lanes if element >= 16 else 2 * lanes


def packed(bits: int) -> Spot:
    """Where elements of A are, whatever their type: registers have eight rows each by turns."""
    per = max(1, 32 // bits)

    def spot(g: int, t: int, i: int) -> tuple[int, int]:
        register, e = divmod(i, per)
        return g + 8 * (register & 1), t * per + e + 4 * per * (register >> 1)

    return spot


@dataclass(frozen=True)
class Sparse(Product):
    selector: int = 0

    @property
    def bits(self) -> int:
        return ELEMENTS[self.a].bits

    @property
    def counts(self) -> tuple[int, int, int]:
        a, b, c = super().counts
        return a // 2, b, c

    def spot_b(self, g: int, t: int, i: int) -> tuple[int, int]:
        per = max(1, 32 // self.bits)
        register, e = divmod(i, per)
        return t * per + e + 4 * per * register, g

    def warp(self, rows: Sequence[Row]) -> list[Row]:
        depth = sizes(self.shape)[2]
        first, grids = 0, []
        spots = (packed(self.bits), self.spot_b, c_spot)
        for name, count, spot in zip((self.a, self.b, self.c), self.counts, spots, strict=True):
            grids.append(collect(rows, first, name, count, spot))
            first += registers_of(name, count)
        words = [chosen(self.bits, row[first]) for row in rows]
        a = spread(grids[0], words, depth, self.bits, self.selector)
        d = multiply(a, grids[1], grids[2], depth, self.join)
        return [self.given(d, lane) for lane in range(WARP)]

    def sparse_case(self) -> Case:
        types = f"{self.d}.{self.a}.{self.b}.{self.c}"
        # metadata is in rising order, which newer cards want
        form = "mma.sp" if self.selector else "mma.sp::ordered_metadata"
        op = f"{form}.sync.aligned.{self.shape}.row.col{self.tail}.{types}"
        dense = self.case(op)
        word = len(dense.inputs)
        body = dense.body.removesuffix(";")
        return replace(
            dense,
            name=f"{op} by {self.selector}",
            body=f"{metadata(self.bits, f'%a{word}', '%r5', '%r4')}\n{body}, %r5, {self.selector};",
            inputs=(*dense.inputs, "x32"),
            version="8.5",
        )


def every_case() -> Iterator[Case]:
    shapes = [("m16n8k16", "f16", "f32"), ("m16n8k32", "f16", "f32"), ("m16n8k32", "f16", "f16")]
    shapes += [("m16n8k16", "bf16", "f32"), ("m16n8k32", "bf16", "f32")]
    shapes += [("m16n8k8", "tf32", "f32"), ("m16n8k16", "tf32", "f32")]
    shapes += [("m16n8k32", "s8", "s32"), ("m16n8k64", "s8", "s32"), ("m16n8k64", "u8", "s32")]
    shapes += [("m16n8k64", "e4m3", "f32"), ("m16n8k64", "s4", "s32"), ("m16n8k128", "u4", "s32")]
    for shape, kind, total in shapes:
        lanes = lanes_of(ELEMENTS[kind].bits, sizes(shape)[2])
        for selector in sorted({0, 4 // lanes - 1}):
            yield Sparse(shape, total, kind, kind, total, selector=selector).sparse_case()
    yield Sparse("m16n8k64", "s32", "s8", "u8", "s32", ".satfinite").sparse_case()
