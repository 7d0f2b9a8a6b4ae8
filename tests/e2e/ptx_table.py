"""What is tested: the instructions that nvcc and NVRTC emit, and their kin."""

from __future__ import annotations

from collections.abc import Iterator

import ptx_async
import ptx_float
import ptx_flow
import ptx_lanes
import ptx_matrix
import ptx_matrix_move
import ptx_sparse
import ptx_warpgroup
from ptx_cases import Case, one

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
LARGE = ("u32", "s32", "u64", "s64")
ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")


def kind(type_name: str) -> str:
    return f"x{type_name[1:]}"


def bits(type_name: str) -> str:
    return f"b{type_name[1:]}"


def arithmetic() -> Iterator[Case]:
    for t in INTEGERS:
        k, b = kind(t), bits(t)
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi"):
            yield one(f"{op}.{t}", f"{k} {k}", b)
        for op in ("mad.lo", "mad.hi"):
            yield one(f"{op}.{t}", f"{k} {k} {k}", b)
        if b != "b64":
            wide = {"b16": "b32", "b32": "b64"}[b]
            yield one(f"mul.wide.{t}", f"{k} {k}", wide)
            yield one(f"mad.wide.{t}", f"{k} {k} {kind(wide)}", wide)
        nonzero = f"nonzero{t[1:]}"
        for op in ("div", "rem"):
            yield one(f"{op}.{t}", f"{k} {nonzero}", b)
        yield one(f"sad.{t}", f"{k} {k} {k}", b)
        if t[0] == "s":
            yield one(f"abs.{t}", k, b)
            yield one(f"neg.{t}", k, b)
    for op in ("add.sat.s32", "sub.sat.s32"):
        yield one(op, "x32 x32")
    yield one("mad.hi.sat.s32", "x32 x32 x32")
    for t in ("u32", "s32"):
        for half in ("lo", "hi"):
            yield one(f"mul24.{half}.{t}", "x32 x32")
            yield one(f"mad24.{half}.{t}", "x32 x32 x32")
    yield one("mad24.hi.sat.s32", "x32 x32 x32")
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            yield one(f"{op}.{t}", "x32 x32", target="sm_90")
    for op in ("min", "max"):
        yield one(f"{op}.relu.s32", "x32 x32", target="sm_90")
        yield one(f"{op}.s16x2.relu", "x32 x32", target="sm_90")
    for t in ("u32", "s32"):
        for mode in ("", ".sat", ".add"):
            yield one(f"vabsdiff4.u32.{t}.{t}{mode}", "x32 x32 x32")
    for a in ("u32", "s32"):
        for b2 in ("u32", "s32"):
            yield one(f"dp4a.{a}.{b2}", "x32 x32 x32")
            yield one(f"dp2a.lo.{a}.{b2}", "x32 x32 x32")
            yield one(f"dp2a.hi.{a}.{b2}", "x32 x32 x32")


def by_zero() -> Iterator[Case]:
    """PTX leaves the quotient open; the soft GPU gives what the card gives."""
    for t in INTEGERS:
        for op in ("div", "rem"):
            name = f"{op}.{t} by zero"
            operands = f"{kind(t)} zero{t[1:]}"
            yield one(f"{op}.{t}", operands, bits(t), name=name, threads=64)


def difference_then_sum(t: str) -> Case:
    """What a subtraction leaves in the carry, as the compiler's division of __int128 reads it."""
    k, b = kind(t), bits(t)
    size = int(t[1:])
    return Case(
        f"sub.cc.{t} then addc",
        f"sub.cc.{t} %d0, %a0, %a1;\naddc.{t} %d1, %a2, 0;",
        (k, k, k),
        (b, b),
        formula=lambda values: [
            ((x - y) % 2**size, (z + (x % 2**size >= y % 2**size)) % 2**size) for x, y, z in values
        ],
    )


def carries() -> Iterator[Case]:
    for t in LARGE:
        k, b = kind(t), bits(t)
        for op in ("add", "sub"):
            yield Case(
                f"{op}.cc.{t} chain",
                f"{op}.cc.{t} %d0, %a0, %a1;\n{op}c.cc.{t} %d1, %a2, %a3;\n"
                f"{op}c.{t} %d2, %a1, %a2;",
                (k, k, k, k),
                (b, b, b),
            )
        yield difference_then_sum(t)
        yield Case(
            f"mad.cc.{t} chain",
            f"mad.lo.cc.{t} %d0, %a0, %a1, %a2;\nmadc.hi.cc.{t} %d1, %a0, %a1, %a3;\n"
            f"madc.lo.cc.{t} %d2, %a2, %a3, %a0;\naddc.{t} %d3, %a0, 0;",
            (k, k, k, k),
            (b, b, b, b),
        )
        yield Case(
            f"mad.hi.cc.{t} chain",
            f"mad.hi.cc.{t} %d0, %a0, %a1, %a2;\nmadc.hi.{t} %d1, %a0, %a3, %a1;",
            (k, k, k, k),
            (b, b),
        )


def fields() -> Iterator[Case]:
    for b in ("b32", "b64"):
        k = kind(b)
        for op in ("popc", "clz"):
            yield one(f"{op}.{b}", k)
        yield one(f"brev.{b}", k, b)
        yield one(f"bfi.{b}", f"{k} {k} shift shift", b)
    for t in LARGE:
        yield one(f"bfind.{t}", kind(t))
        yield one(f"bfind.shiftamt.{t}", kind(t))
        yield one(f"bfe.{t}", f"{kind(t)} shift shift", bits(t))
    for b in ("b16", "b32", "b64"):
        k = kind(b)
        yield one(f"shl.{b}", f"{k} shift", b)
        for letter in "bus":
            yield one(f"shr.{letter}{b[1:]}", f"{k} shift", b)
        for op in ("and", "or", "xor"):
            yield one(f"{op}.{b}", f"{k} {k}", b)
        yield one(f"not.{b}", k, b)
        yield one(f"cnot.{b}", k, b)
    for op in ("and", "or", "xor"):
        yield one(f"{op}.pred", "pred pred", "pred")
    yield one("not.pred", "pred", "pred")
    for mode in ("l.wrap", "l.clamp", "r.wrap", "r.clamp"):
        yield one(f"shf.{mode}.b32", "x32 x32 shift")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield one(f"prmt.b32{mode}", "x32 x32 x32")
    yield one("prmt.b32", "x32 x32", tail="0x5410")
    yield one("fns.b32", "x32 lane few")
    for mode in ("clamp", "wrap"):
        yield one(f"bmsk.{mode}.b32", "shift shift")
        for t in ("u32", "s32"):
            yield one(f"szext.{mode}.{t}", "x32 shift")
    yield from logic()


def logic() -> Iterator[Case]:
    tables = (0, 1, 0x0F, 0x17, 0x2A, 0x33, 0x3C, 0x55, 0x80, 0x96, 0xCA, 0xE8, 0xEA, 0xF8, 0xFE)
    for table in (*tables, 0xFF):
        yield one("lop3.b32", "x32 x32 x32", tail=f"0x{table:02X}")
    for join in ("and", "or"):
        for table in (0x80, 0x96, 0x01):
            yield Case(
                f"lop3.{join}.b32 0x{table:02X}",
                f"lop3.{join}.b32 %d0|%d1, %a0, %a1, %a2, 0x{table:02X}, %a3;",
                ("x32", "x32", "x32", "pred"),
                ("b32", "pred"),
                version="8.2",
            )


def compares() -> Iterator[Case]:
    for t in INTEGERS:
        orders = ORDERS + (("lo", "ls", "hi", "hs") if t[0] == "u" else ())
        for order in orders:
            yield from compare(order, t, kind(t))
    for b in ("b16", "b32", "b64"):
        for order in ("eq", "ne"):
            yield from compare(order, b, kind(b))
    for t in ("f32", "f64"):
        for order in (*ORDERS, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
            yield from compare(order, t, t)
            if t == "f32":
                yield from compare(f"{order}.ftz", t, t)
    for join in ("and", "or", "xor"):
        yield one(f"setp.lt.{join}.s32", "x32 x32 pred", "pred pred")
        yield one(f"setp.geu.{join}.f32", "f32 f32 pred", "pred pred")
        yield one(f"set.lt.{join}.u32.s32", "x32 x32 pred")
        yield one(f"set.lt.{join}.f32.s32", "x32 x32 pred")
        yield Case(
            f"setp.ne.{join}.b32 with the inverse",
            f"setp.ne.{join}.b32 %d0|%d1, %a0, %a1, !%a2;",
            ("x32", "few", "pred"),
            ("pred", "pred"),
        )


def compare(order: str, t: str, k: str) -> Iterator[Case]:
    ordering, _, ftz = order.partition(".")
    suffix = f"{ordering}.{ftz}" if ftz else ordering
    yield one(f"setp.{suffix}.{t}", f"{k} {k}", "pred pred")
    for result in ("u32", "s32", "f32"):
        yield one(f"set.{suffix}.{result}.{t}", f"{k} {k}")


def selections() -> Iterator[Case]:
    for t in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        k, b = kind(t), bits(t)
        yield one(f"selp.{t}", f"{k} {k} pred", b)
        yield one(f"slct.{t}.s32", f"{k} {k} x32", b)
        yield one(f"slct.{t}.f32", f"{k} {k} f32", b)
    yield one("slct.ftz.u32.f32", "x32 x32 f32")
    for t in ("b16", "u16", "b32", "f32", "b64", "f64", "s32", "u64"):
        yield one(f"mov.{t}", kind(t), bits(t))
    yield one("mov.pred", "pred", "pred")
    packs = (("b32", 2, "b16"), ("b64", 2, "b32"), ("b64", 4, "b16"))
    for whole, count, part in packs:
        parts = ", ".join(f"%a{i}" for i in range(count))
        yield Case(
            f"mov.{whole} from {count} {part}",
            f"mov.{whole} %d0, {{{parts}}};",
            (kind(part),) * count,
            (whole,),
        )
        parts = ", ".join(f"%d{i}" for i in range(count))
        yield Case(
            f"mov.{whole} to {count} {part}",
            f"mov.{whole} {{{parts}}}, %a0;",
            (kind(whole),),
            (part,) * count,
        )
    yield Case("mov.b64 to one of two", "mov.b64 {_, %d0}, %a0;", ("x64",), ("b32",), version="8.0")
    yield Case(
        "mov.b128",
        "{ .reg .b128 %w, %v;\nmov.b128 %w, {%a0, %a1};\nmov.b128 %v, %w;\n"
        "mov.b128 {%d1, %d0}, %v; }",
        ("x64", "x64"),
        ("b64", "b64"),
        version="8.3",
    )


def holds(to: str, source: str) -> bool:
    """Whether every number of the one type is one of the other, so that PTX has no .sat."""
    wider = int(to[1:]) - int(source[1:])
    return wider >= 0 if to[0] == source[0] else to[0] == "s" and wider > 0


def integer_conversions() -> Iterator[Case]:
    types = ("u8", "s8", *INTEGERS)
    for to in types:
        register = "b32" if to[1:] == "8" else bits(to)
        for source in types:
            yield one(f"cvt.{to}.{source}", kind(source), register)
            if not holds(to, source):
                yield one(f"cvt.sat.{to}.{source}", kind(source), register)
    for to, source in (("s16", "u32"), ("s8", "s32"), ("u16", "s32"), ("s32", "s64")):
        yield Case(
            f"cvt.{to}.{source} into a wider register",
            f"cvt.{to}.{source} %d0, %a0;",
            (kind(source),),
            ("b64",),
        )
    for to in ("u16", "s16"):
        yield one(f"cvt.pack.sat.{to}.s32", "x32 x32")
    for to in ("u8", "s8"):
        yield one(f"cvt.pack.sat.{to}.s32.b32", "x32 x32 x32")


def every_case() -> Iterator[Case]:
    yield from arithmetic()
    yield from by_zero()
    yield from carries()
    yield from fields()
    yield from compares()
    yield from selections()
    yield from integer_conversions()
    yield from ptx_float.every_case()
    yield from ptx_lanes.every_case()
    yield from ptx_flow.every_case()
    yield from ptx_matrix.every_case()
    yield from ptx_async.every_case()
    yield from ptx_matrix_move.every_case()
    yield from ptx_sparse.every_case()
    yield from ptx_warpgroup.every_case()


def table() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for case in every_case():
        if case.name in cases:
            raise ValueError(f"two cases are named {case.name}")
        cases[case.name] = case
    return cases
