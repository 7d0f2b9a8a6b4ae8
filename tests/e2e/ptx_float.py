"""Cases of floating-point arithmetic and conversions."""

from __future__ import annotations

from collections.abc import Iterator

from ptx_cases import Case, one

ROUNDINGS = ("rn", "rz", "rm", "rp")
ORDERS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu")
FLUSHED = ("", ".ftz")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def modifiers(*choices: tuple[str, ...]) -> Iterator[str]:
    """Every way to choose one of each."""
    if not choices:
        yield ""
        return
    for first in choices[0]:
        for rest in modifiers(*choices[1:]):
            yield first + rest


def single_and_double() -> Iterator[Case]:
    for mode in modifiers(tuple(f".{r}" for r in ROUNDINGS), FLUSHED, ("", ".sat")):
        for op in ("add", "sub", "mul"):
            yield one(f"{op}{mode}.f32", "f32 f32")
        yield one(f"fma{mode}.f32", "f32 f32 f32")
    for mode in modifiers(tuple(f".{r}" for r in ROUNDINGS), FLUSHED):
        yield one(f"div{mode}.f32", "f32 f32")
        yield one(f"rcp{mode}.f32", "f32")
        yield one(f"sqrt{mode}.f32", "f32")
    for rounding in ROUNDINGS:
        for op in ("add", "sub", "mul", "div"):
            yield one(f"{op}.{rounding}.f64", "f64 f64", "b64")
        yield one(f"fma.{rounding}.f64", "f64 f64 f64", "b64")
        yield one(f"rcp.{rounding}.f64", "f64", "b64")
        yield one(f"sqrt.{rounding}.f64", "f64", "b64")
    for op in ("add", "sub", "mul"):
        yield one(f"{op}.f32", "f32 f32")
        yield one(f"{op}.f64", "f64 f64", "b64")
    for ftz in FLUSHED:
        for op in ("abs", "neg"):
            yield one(f"{op}{ftz}.f32", "f32")
        for op in ("min", "max"):
            yield one(f"{op}{ftz}.f32", "f32 f32")
            yield one(f"{op}{ftz}.NaN.f32", "f32 f32", target="sm_80")
            for nan in ("", ".NaN"):
                yield one(f"{op}{ftz}{nan}.xorsign.abs.f32", "f32 f32", target="sm_86")
    for op in ("abs", "neg"):
        yield one(f"{op}.f64", "f64", "b64")
    for op in ("min", "max"):
        yield one(f"{op}.f64", "f64 f64", "b64")
    for t, b in (("f32", "b32"), ("f64", "b64")):
        yield one(f"copysign.{t}", f"{t} {t}", b)
        for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield one(f"testp.{test}.{t}", t, "pred")


def halves() -> Iterator[Case]:
    for t, b in (("f16", "b16"), ("f16x2", "b32")):
        for mode in modifiers(("", ".rn"), FLUSHED, ("", ".sat")):
            for op in ("add", "sub", "mul"):
                yield one(f"{op}{mode}.{t}", f"{t} {t}", b)
        for mode in modifiers((".rn",), FLUSHED, ("", ".sat", ".relu")):
            target = "sm_80" if "relu" in mode else "sm_75"
            yield one(f"fma{mode}.{t}", f"{t} {t} {t}", b, target=target)
        for ftz in FLUSHED:
            yield one(f"neg{ftz}.{t}", t, b)
            yield one(f"abs{ftz}.{t}", t, b)
        for mode in modifiers(FLUSHED, ("", ".NaN")):
            for op in ("min", "max"):
                yield one(f"{op}{mode}.{t}", f"{t} {t}", b, target="sm_80")
                sign = f"{op}{mode}.xorsign.abs.{t}"
                yield one(sign, f"{t} {t}", b, target="sm_86")
    for t, b in (("bf16", "b16"), ("bf16x2", "b32")):
        for op in ("add", "sub", "mul"):
            yield one(f"{op}.rn.{t}", f"{t} {t}", b, target="sm_90")
        for relu in ("", ".relu"):
            yield one(f"fma.rn{relu}.{t}", f"{t} {t} {t}", b, target="sm_80")
        for op in ("neg", "abs"):
            yield one(f"{op}.{t}", t, b, target="sm_80")
        for op in ("min", "max"):
            yield one(f"{op}.{t}", f"{t} {t}", b, target="sm_80")
            yield one(f"{op}.NaN.{t}", f"{t} {t}", b, target="sm_80")
            yield one(f"{op}.xorsign.abs.{t}", f"{t} {t}", b, target="sm_86")
    yield from half_compares()


def half_compares() -> Iterator[Case]:
    for order in (*ORDERS, "num", "nan"):
        for ftz in FLUSHED:
            yield one(f"setp.{order}{ftz}.f16", "f16 f16", "pred")
            yield one(f"setp.{order}{ftz}.f16x2", "f16x2 f16x2", "pred pred")
            yield one(f"set.{order}{ftz}.f16.f16", "f16 f16", "b16")
            yield one(f"set.{order}{ftz}.u32.f16", "f16 f16")
            yield one(f"set.{order}{ftz}.f16x2.f16x2", "f16x2 f16x2")
        yield one(f"setp.{order}.bf16", "bf16 bf16", "pred", target="sm_90")
        yield one(f"setp.{order}.bf16x2", "bf16x2 bf16x2", "pred pred", target="sm_90")
        yield one(f"set.{order}.bf16x2.bf16x2", "bf16x2 bf16x2", target="sm_90")
    for join in ("and", "or", "xor"):
        yield one(f"setp.gt.{join}.f16x2", "f16x2 f16x2 pred", "pred pred")


def to_integers() -> Iterator[Case]:
    for to in INTEGERS:
        register = "b32" if to[1:] == "8" else f"b{to[1:]}"
        for rounding in ROUNDINGS:
            for sat in ("", ".sat"):
                for source in ("f16", "f32", "f64"):
                    yield one(f"cvt.{rounding}i{sat}.{to}.{source}", source, register)
                yield one(f"cvt.{rounding}i.ftz{sat}.{to}.f32", "f32", register)
    for to in ("u16", "s16", "u32", "s32", "u64", "s64"):
        yield one(f"cvt.rzi.{to}.bf16", "bf16", f"b{to[1:]}", target="sm_90")


def of_integers() -> Iterator[Case]:
    for source in INTEGERS:
        kind = f"x{source[1:]}"
        for rounding in ROUNDINGS:
            for to, register in (("f16", "b16"), ("f32", "b32"), ("f64", "b64")):
                yield one(f"cvt.{rounding}.{to}.{source}", kind, register)
            if kind != "x8":
                yield one(f"cvt.{rounding}.bf16.{source}", kind, "b16", target="sm_90")
        yield one(f"cvt.rn.sat.f32.{source}", kind)


def among_floats() -> Iterator[Case]:
    for rounding in ROUNDINGS:
        for mode in modifiers((f".{rounding}",), FLUSHED, ("", ".sat")):
            yield one(f"cvt{mode}.f16.f32", "f32", "b16")
            yield one(f"cvt{mode}.f32.f64", "f64")
        for sat in ("", ".sat"):
            yield one(f"cvt.{rounding}{sat}.f16.f64", "f64", "b16")
            yield one(f"cvt.{rounding}i{sat}.f16.f16", "f16", "b16")
            yield one(f"cvt.{rounding}i{sat}.f64.f64", "f64", "b64")
            for ftz in FLUSHED:
                yield one(f"cvt.{rounding}i{ftz}{sat}.f32.f32", "f32")
    for mode in modifiers(FLUSHED, ("", ".sat")):
        yield one(f"cvt{mode}.f32.f16", "f16")
        yield one(f"cvt{mode}.f32.f32", "f32")
        yield one(f"cvt{mode}.f64.f32", "f32", "b64")
    for sat in ("", ".sat"):
        yield one(f"cvt{sat}.f64.f16", "f16", "b64")
        yield one(f"cvt{sat}.f64.f64", "f64", "b64")
        yield one(f"cvt{sat}.f16.f16", "f16", "b16")
    yield from short_formats()


def short_formats() -> Iterator[Case]:
    for mode in modifiers((".rn", ".rz"), ("", ".relu")):
        yield one(f"cvt{mode}.bf16.f32", "f32", "b16", target="sm_80")
        for to in ("f16x2", "bf16x2"):
            yield one(f"cvt{mode}.{to}.f32", "f32 f32", target="sm_80")
        if "relu" in mode:
            yield one(f"cvt{mode}.f16.f32", "f32", "b16", target="sm_80")
        yield one(f"cvt{mode}.tf32.f32", "f32", target="sm_90")
    yield one("cvt.rna.tf32.f32", "f32", target="sm_80")
    yield one("cvt.f32.bf16", "bf16", target="sm_90")
    yield one("cvt.f64.bf16", "bf16", "b64", target="sm_90")
    for rounding in ROUNDINGS:
        yield one(f"cvt.{rounding}.bf16.f16", "f16", "b16", target="sm_90")
        yield one(f"cvt.{rounding}.f16.bf16", "bf16", "b16", target="sm_90")
        yield one(f"cvt.{rounding}.bf16.f64", "f64", "b16", target="sm_90")
        yield one(f"cvt.{rounding}i.bf16.bf16", "bf16", "b16", target="sm_90")
    for small in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            to = f"cvt.rn.satfinite{relu}.{small}"
            yield one(f"{to}.f32", "f32 f32", "b16", target="sm_89", version="8.1")
            yield one(f"{to}.f16x2", "f16x2", "b16", target="sm_89", version="8.1")
            back = f"cvt.rn{relu}.f16x2.{small}"
            yield one(back, "e4m3x2", target="sm_89", version="8.1")


def approximate() -> Iterator[Case]:
    """The distances are PTX's own bounds, rounded up to whole units in the last place."""
    for ftz in FLUSHED:
        for op, ulp in (("rcp", 1), ("sqrt", 2), ("rsqrt", 3)):
            yield one(f"{op}.approx{ftz}.f32", "f32", "f32", ulp=ulp, threads=128)
        yield one(f"ex2.approx{ftz}.f32", "f32", "f32", ulp=4, threads=128)
        yield one(f"lg2.approx{ftz}.f32", "f32", "f32", ulp=4, absolute=2.0**-22, threads=128)
        for op in ("sin", "cos"):
            yield one(
                f"{op}.approx{ftz}.f32", "angle", "f32", ulp=2, absolute=2.0**-20, threads=128
            )
        # No bound is promised for subnormal divisors.
        for op in ("div.approx", "div.full"):
            yield one(f"{op}{ftz}.f32", "f32 divisor", "f32", ulp=2, threads=128)
    yield one("tanh.approx.f32", "f32", "f32", ulp=1 << 13, threads=128)
    for t, output in (("f16", "f16"), ("f16x2", "f16x2")):
        yield one(f"ex2.approx.{t}", t, output, ulp=3, threads=128)
        yield one(f"tanh.approx.{t}", t, output, ulp=1, absolute=2.0**-10.5, threads=128)
    for t in ("bf16", "bf16x2"):
        yield one(f"ex2.approx.ftz.{t}", t, t, ulp=2, threads=128, target="sm_90")
        tanh = f"tanh.approx.{t}"
        yield one(tanh, t, t, ulp=1, absolute=2.0**-7, threads=128, target="sm_90")
    # Good to 20 bits; the lower half of the result is zero.
    yield one("rcp.approx.ftz.f64", "f64", "f64", ulp=1 << 33, threads=64)
    for ftz in FLUSHED:
        yield one(f"rsqrt.approx{ftz}.f64", "f64", "f64", ulp=1 << 33, threads=64)


def every_case() -> Iterator[Case]:
    yield from single_and_double()
    yield from halves()
    yield from to_integers()
    yield from of_integers()
    yield from among_floats()
    yield from approximate()
