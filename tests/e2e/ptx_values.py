"""Inputs of the PTX cases: for each kind of operand its edge values, and mixes of them.

Everything here is fixed for ever, down to the generator: what was recorded on a real GPU holds
only for the very same inputs.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MASK = (1 << 64) - 1


class Mixer:
    """SplitMix64: the same numbers on every machine and in every version of Python."""

    def __init__(self, seed: str) -> None:
        self.state = zlib.crc32(seed.encode())

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        return self.next() % limit


@dataclass(frozen=True)
class Kind:
    """One kind of operand: its register, its edge values, and how the others are drawn.

    `spread` 0 draws all bit patterns; for the floating-point formats (sign, exponent and
    fraction of `layout`) every second value has an exponent near zero, so that sums meet.
    `only` draws from the edges alone.
    """

    register: str
    edges: tuple[int, ...]
    layout: tuple[int, int] | None = None
    only: bool = False

    @property
    def bits(self) -> int:
        return {"pred": 1}.get(self.register) or int(self.register[1:])

    def draw(self, mixer: Mixer) -> int:
        choice, value = mixer.below(8), mixer.next()
        if self.only or choice < 3:
            return self.edges[value % len(self.edges)]
        if self.layout is None:
            # Small numbers as often as large ones.
            return (value & ((1 << self.bits) - 1)) >> (value >> 58) % self.bits
        exponent, fraction = self.layout
        bits = value & ((1 << self.bits) - 1)
        if choice < 6:
            bias = (1 << (exponent - 1)) - 1
            span = min(24, bias - 1)
            near = bias - span // 2 + (value >> 40) % span
            bits &= ~(((1 << exponent) - 1) << fraction)
            bits |= near << fraction
        return bits & ((1 << self.bits) - 1)


def integer_edges(bits: int) -> tuple[int, ...]:
    full = (1 << bits) - 1
    small = [0, 1, 2, 3, 5, 7, 8, 10, 15, 16, 31, 32, 33, 63, 64, 100, 127, 128, 255]
    shifts = [256, 1000, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000001]
    shifts += [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, 0x1FFFFFFFFFFFFF, 1 << 53]
    values = small + [v for v in shifts if v <= full]
    values += [full, full - 1, full >> 1, (full >> 1) + 1, (full >> 1) + 2, (full >> 1) - 1]
    values += [(-v) & full for v in (2, 3, 7, 10, 100, 127, 128, 129)]
    values += [0x5555555555555555 & full, 0xAAAAAAAAAAAAAAAA & full, 0x0123456789ABCDEF & full]
    return tuple(dict.fromkeys(v & full for v in values))


def f32(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def f64(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def f16(value: float) -> int:
    return int(struct.unpack("<H", struct.pack("<e", value))[0])


PLAIN = (1.0, -1.0, 0.5, -0.5, 1.5, 2.0, 2.5, -2.5, 3.0, 0.1, -0.3, 3.14159265, 100.0, 255.5)
WIDE: tuple[float, ...] = (
    -128.5,
    32767.5,
    65504.0,
    65519.0,
    65520.0,
    -65536.0,
    8388609.0,
    16777215.0,
    1e9,
)
WIDE += (2147483648.0, -2147483648.0, 4294967296.0, -1e10, 9.3e18, -9.3e18, 1.8446744e19, 1e30)


def _e4m3(value: float) -> int:
    """Powers of two only: sign, 4 bits of exponent with bias 7, 3 of fraction."""
    mantissa, exponent = math.frexp(abs(value))
    if value and mantissa != 0.5:
        raise ValueError(f"{value} is no power of two")
    return (0x80 if value < 0 else 0) | ((exponent - 1 + 7) << 3 if value else 0)


def float_edges(exponent: int, fraction: int, plain: tuple[int, ...]) -> tuple[int, ...]:
    sign, infinity = 1 << (exponent + fraction), ((1 << exponent) - 1) << fraction
    one, quiet = ((1 << (exponent - 1)) - 1) << fraction, 1 << (fraction - 1)
    special = [0, 1, 2, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1, infinity - 1]
    special += [infinity, infinity | quiet, infinity | 1, infinity | quiet | 5, one + 1, one - 1]
    special += [sign | v for v in special]
    return tuple(dict.fromkeys([*special, *plain]))


def _bf16(values: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(f32(v) >> 16 for v in values)


F16 = float_edges(5, 10, tuple(f16(v) for v in (*PLAIN, *WIDE[:4])))
BF16 = float_edges(8, 7, _bf16((*PLAIN, *WIDE)))
F32 = float_edges(8, 23, tuple(f32(v) for v in (*PLAIN, *WIDE)))
F64 = float_edges(11, 52, tuple(f64(v) for v in (*PLAIN, *WIDE, 1e300, 1e-310, 3e-39, 1e-45)))


def _pairs(edges: tuple[int, ...]) -> tuple[int, ...]:
    turned = edges[7:] + edges[:7]
    return tuple(low | high << 16 for low, high in zip(edges, turned, strict=True))


def _shifts(bits: int) -> tuple[int, ...]:
    return (0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, bits - 1) + (
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
    )


def _angles() -> tuple[int, ...]:
    steps = [f32(n * 0.19634954 * sign) for n in range(1, 33) for sign in (1, -1)]
    return tuple([0, 0x80000000, 1, 0x7FC00000, 0x7F800000, 0xFF800000, *steps])


_INTEGERS = {b: integer_edges(b) for b in (8, 16, 32, 64)}
_NOT_SUBNORMAL = tuple(v for v in F32 if v & 0x7F800000 or not v & 0x7FFFFFFF)

KINDS: dict[str, Kind] = {
    "pred": Kind("pred", (0, 1), only=True),
    "x8": Kind("b8", _INTEGERS[8]),
    "x16": Kind("b16", _INTEGERS[16]),
    "x32": Kind("b32", _INTEGERS[32]),
    "x64": Kind("b64", _INTEGERS[64]),
    "nonzero16": Kind("b16", _INTEGERS[16][1:], only=True),
    "nonzero32": Kind("b32", _INTEGERS[32][1:], only=True),
    "nonzero64": Kind("b64", _INTEGERS[64][1:], only=True),
    "zero16": Kind("b16", (0,), only=True),
    "zero32": Kind("b32", (0,), only=True),
    "zero64": Kind("b64", (0,), only=True),
    "shift": Kind("b32", _shifts(32), only=True),
    "lane": Kind("b32", tuple(range(32)), only=True),
    "few": Kind("b32", (0, 1, 2, 0x80000000, 0xFFFFFFFF), only=True),
    "few64": Kind("b64", (0, 1, 1 << 32, 1 << 63), only=True),
    "f16": Kind("b16", F16, (5, 10)),
    "bf16": Kind("b16", BF16, (8, 7)),
    "f16x2": Kind("b32", _pairs(F16)),
    "bf16x2": Kind("b32", _pairs(BF16)),
    "f32": Kind("b32", F32, (8, 23)),
    "f64": Kind("b64", F64, (11, 52)),
    "angle": Kind("b32", _angles(), only=True),
    "divisor": Kind("b32", _NOT_SUBNORMAL, only=True),
    "e4m3x2": Kind("b16", _INTEGERS[16]),
}


def _packed(
    values: tuple[float, ...], encode: Callable[[float], int], bits: int, word: int = 32
) -> Kind:
    """Words of several numbers each; of _SMALL ones products and short sums are exact."""
    per, count = word // bits, len(values)
    edges = []
    for i in range(2 * count):
        parts = [encode(values[(i * (j + 1) + 3 * j) % count]) << (bits * j) for j in range(per)]
        edges.append(sum(parts))
    return Kind(f"b{word}", tuple(dict.fromkeys(edges)), only=True)


_SMALL = (0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 4.0, 0.25, -0.75, 6.0, -8.0, 1.5, 7.0)
_FRACTIONS = tuple((n * 37 % 101 - 50) / 32 + n / 1024 for n in range(64))
_LIMITS = (1.0, -2.0, 0.0, math.inf, -math.inf, math.nan, 0.5, 65504.0)

#: What matrices are made of.
KINDS |= {
    "small_f16x2": _packed(_SMALL, f16, 16),
    "small_bf16x2": _packed(_SMALL, lambda v: f32(v) >> 16, 16),
    "small_f32": _packed(_SMALL, f32, 32),
    "small_f16x4": _packed(_SMALL, f16, 16, 64),
    "small_bf16x4": _packed(_SMALL, lambda v: f32(v) >> 16, 16, 64),
    "small_f32x2": _packed(_SMALL, f32, 32, 64),
    "small_f64": Kind("b64", tuple(f64(v) for v in _SMALL), only=True),
    "small_e4m3x4": _packed((0.0, 1.0, -1.0, 2.0, 0.5, -4.0), _e4m3, 8),
    "small_e5m2x4": _packed((0.0, 1.0, -1.0, 2.0, 0.5, -4.0), lambda v: f16(v) >> 8, 8),
    "fraction_f16x2": _packed(_FRACTIONS, f16, 16),
    "limit_f16x2": _packed(_LIMITS, f16, 16),
}


def tuples(kinds: tuple[str, ...], seed: str, count: int) -> Iterator[tuple[int, ...]]:
    """`count` tuples of one value per kind: first each edge with a neighbour, then mixes."""
    mixer = Mixer(seed)
    chosen = [KINDS[kind] for kind in kinds]
    most = max(len(kind.edges) for kind in chosen)
    for n in range(count):
        if n < most and n < count // 2:
            yield tuple(
                kind.edges[(n if i == 0 else n * (2 * i + 1) + i) % len(kind.edges)]
                for i, kind in enumerate(chosen)
            )
        else:
            yield tuple(kind.draw(mixer) for kind in chosen)
