"""Cases of memory, atomics, and instructions between threads."""

from __future__ import annotations

from collections.abc import Iterator

from ptx_cases import Case, one

FULL = "0xffffffff"


def exchanges() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        for control in ("0x0", "0x1f", "0x181f", "0x1c03", "0x1e01", "0x100f", "0x5"):
            yield one(f"shfl.sync.{mode}.b32", "x32 lane", "b32 pred", tail=f"{control}, {FULL}")
        yield one(f"shfl.sync.{mode}.b32", "x32 x32 x32", "b32 pred", tail=FULL)
        for width, control in ((8, "0x181f"), (32, "0x1f")):
            yield Case(
                f"shfl.sync.{mode}.b32 of even lanes, {width} wide",
                f"and.b32 %r1, %me, 1;\nsetp.eq.u32 %p0, %r1, 0;\nmov.b32 %d0, %a0;\n"
                f"and.b32 %r2, %a1, 0x1e;\n"
                f"@%p0 shfl.sync.{mode}.b32 %d0, %a0, %r2, {control}, 0x55555555;",
                ("x32", "lane"),
            )
    yield one("shfl.sync.idx.b32", "x32 lane", tail=f"0x1f, {FULL}", name="shfl without predicate")
    for mode in ("all", "any", "uni"):
        yield one(f"vote.sync.{mode}.pred", "pred", "pred", tail=FULL)
    yield one("vote.sync.ballot.b32", "pred", tail=FULL)
    for mode in ("all", "any", "uni"):
        yield Case(
            f"vote.sync.{mode}.pred of rare ones",
            f"setp.eq.u32 %p0, %a0, 0;\nvote.sync.{mode}.pred %d0, %p0, {FULL};\n"
            f"vote.sync.{mode}.pred %d1, !%p0, {FULL};",
            ("x32",),
            ("pred", "pred"),
        )
    for b, kind, letter in (("b32", "few", "r"), ("b64", "few64", "x")):
        yield one(f"match.any.sync.{b}", kind, tail=FULL)
        yield one(f"match.all.sync.{b}", kind, "b32 pred", tail=FULL)
        yield Case(
            f"match.all.sync.{b} of equal ones",
            f"xor.{b} %{letter}1, %a0, %a0;\nmatch.all.sync.{b} %d0|%d1, %{letter}1, {FULL};",
            (kind,),
            ("b32", "pred"),
        )
    for t in ("u32", "s32"):
        for op in ("add", "min", "max"):
            yield one(f"redux.sync.{op}.{t}", "x32", tail=FULL, target="sm_80")
    for op in ("and", "or", "xor"):
        yield one(f"redux.sync.{op}.b32", "x32", tail=FULL, target="sm_80")
    yield Case("activemask", "activemask.b32 %d0;", ("x32",))
    yield Case(
        "elect.sync", f"elect.sync %d0|%d1, {FULL};", ("x32",), ("b32", "pred"), target="sm_90"
    )


def divergent() -> Iterator[Case]:
    yield Case(
        "exchanges on both sides of a branch",
        "and.b32 %r1, %me, 3;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 bra LEFT;\n"
        "redux.sync.add.u32 %d0, %a0, 0xeeeeeeee;\nvote.sync.ballot.b32 %d1, %a1, 0xeeeeeeee;\n"
        "bra JOIN;\nLEFT:\nredux.sync.max.u32 %d0, %a0, 0x11111111;\n"
        "vote.sync.ballot.b32 %d1, %a1, 0x11111111;\nJOIN:\n"
        f"bar.warp.sync {FULL};\nvote.sync.ballot.b32 %d2, %a1, {FULL};",
        ("x32", "pred"),
        ("b32", "b32", "b32"),
        target="sm_80",
    )
    for op in ("and", "or"):
        yield Case(
            f"bar.red.{op}.pred",
            f"setp.lt.u32 %p0, %a0, 3;\nbar.red.{op}.pred %d0, 0, %p0;\n"
            f"bar.red.{op}.pred %d1, 0, !%p0;",
            ("x32",),
            ("pred", "pred"),
        )
    yield Case("bar.red.popc.u32", "bar.red.popc.u32 %d0, 0, %a0;", ("pred",))
    yield Case("bar.red.popc.u32 with count", "bar.red.popc.u32 %d0, 1, 64, !%a0;", ("pred",))
    yield Case("barrier.sync", "barrier.sync 0;\nbarrier.red.popc.u32 %d0, 2, %a0;", ("pred",))


ATOMICS: tuple[tuple[str, str, str], ...] = (
    *((f"add.{t}", k, b) for t, k, b in (("u32", "x32", "b32"), ("s32", "x32", "b32"))),
    ("add.u64", "x64", "b64"),
    ("add.f32", "f32", "b32"),
    ("add.f64", "f64", "b64"),
    ("add.noftz.f16x2", "f16x2", "b32"),
    ("add.noftz.f16", "f16", "b16"),
    *((f"{op}.{t}32", "x32", "b32") for op in ("min", "max") for t in "us"),
    *((f"{op}.{t}64", "x64", "b64") for op in ("min", "max") for t in "us"),
    *((f"{op}.u32", "x32", "b32") for op in ("inc", "dec")),
    *((f"{op}.b32", "x32", "b32") for op in ("and", "or", "xor", "exch")),
    *((f"{op}.b64", "x64", "b64") for op in ("and", "or", "xor", "exch")),
)
NEW_ATOMICS = (("add.noftz.bf16", "bf16", "b16"), ("add.noftz.bf16x2", "bf16x2", "b32"))


def atomic(op: str, kind: str, b: str, target: str) -> Iterator[Case]:
    """Each thread on a word of its own: what it was (word 0) and what it became (word 1)."""
    for space in ("global", "shared", ""):
        place = "%sh" if space == "shared" else "%out+8"
        suffix = f".{space}" if space else ""
        store = space or "global"
        yield Case(
            f"atom{suffix}.{op}",
            f"st.{store}.{b} [{place}], %a0;\natom{suffix}.{op} %d0, [{place}], %a1;\n"
            + back(store, b),
            (kind, kind),
            (b, "memory"),
            target=target,
        )
        if "exch" not in op:
            yield Case(
                f"red{suffix}.{op}",
                f"st.{store}.{b} [{place}], %a0;\nred{suffix}.{op} [{place}], %a1;\n"
                f"mov.{b} %d0, %a1;\n" + back(store, b),
                (kind, kind),
                (b, "memory"),
                target=target,
            )


def back(space: str, b: str) -> str:
    if space == "global":
        return ""
    word = {"b16": "%h0", "b32": "%r0", "b64": "%x0"}[b]
    return f"ld.shared.{b} {word}, [%sh];\nst.global.{b} [%out+8], {word};"


def atomics() -> Iterator[Case]:
    for op, kind, b in ATOMICS:
        yield from atomic(op, kind, b, "sm_75")
    for op, kind, b in NEW_ATOMICS:
        yield from atomic(op, kind, b, "sm_90")
    for space in ("global", "shared"):
        place = "%sh" if space == "shared" else "%out+8"
        for b, kind in (("b16", "few"), ("b32", "few"), ("b64", "few64")):
            narrow = "cvt.u16.u32 %h1, %a0;\ncvt.u16.u32 %h2, %a1;\ncvt.u16.u32 %h3, %a2;\n"
            names = ("%h1", "%h2", "%h3") if b == "b16" else ("%a0", "%a1", "%a2")
            yield Case(
                f"atom.{space}.cas.{b}",
                (narrow if b == "b16" else "")
                + f"st.{space}.{b} [{place}], {names[0]};\n"
                + f"atom.{space}.cas.{b} %d0, [{place}], {names[1]}, {names[2]};\n"
                + back(space, b),
                (kind, kind, kind),
                (b, "memory"),
            )
    yield from shared_sums()


def shared_sums() -> Iterator[Case]:
    """All threads of a block on one word; the operations commute, so the sum is one."""
    for op, start in (
        ("add.u32", 0),
        ("min.s32", 0),
        ("max.u32", 0),
        ("xor.b32", 0),
        ("inc.u32", 0),
    ):
        operand = "40" if op == "inc.u32" else "%a0"
        yield Case(
            f"red.shared.{op} of a block",
            f"mov.u32 %r1, room;\nst.shared.b32 [%sh], {start};\nbar.sync 0;\n"
            f"red.shared.{op} [%r1], {operand};\nbar.sync 0;\nld.shared.b32 %d0, [%r1];",
            ("x32",),
        )


def accesses() -> Iterator[Case]:
    for t in ("u8", "s8", "u16", "s16", "u32", "s32"):
        for register in ("b32", "b64"):
            yield Case(
                f"ld.global.{t} into {register}",
                f"st.global.b64 [%out+8], %a0;\nld.global.{t} %d0, [%out+8];",
                ("x64",),
                (register, "memory"),
            )
    for t in ("b8", "u16", "s8"):
        yield Case(
            f"st.global.{t} of a wider register",
            f"st.global.b64 [%out], %a0;\nst.global.{t} [%out+2], %a1;",
            ("x64", "x32"),
            ("memory",),
        )
    for space, place in (("global", "%out+16"), ("shared", "%sh")):
        for t, registers in (("u32", "r"), ("b64", "x"), ("u16", "h"), ("u8", "h"), ("f32", "r")):
            for count in (2, 4):
                if t == "b64" and count == 4:
                    continue
                yield vectors(space, place, t, registers, count)
    yield from flavours()
    yield Case(
        "isspacep",
        "cvt.u64.u32 %x1, %sh;\ncvta.shared.u64 %x1, %x1;\n"
        "isspacep.shared %d0, %x1;\nisspacep.global %d1, %x1;\nisspacep.local %d2, %x1;\n"
        "isspacep.shared %d3, %out;\nisspacep.global %d4, %out;\nisspacep.const %d5, %out;",
        ("x32",),
        ("pred",) * 6,
    )
    yield Case(
        "cvta there and back",
        "cvt.u64.u32 %x1, %sh;\ncvta.shared.u64 %x2, %x1;\ncvta.to.shared.u64 %x3, %x2;\n"
        "sub.u64 %d0, %x3, %x1;\nst.u32 [%x2], %a0;\nld.shared.u32 %d1, [%sh];",
        ("x32",),
        ("b64", "b32"),
    )


def flavours() -> Iterator[Case]:
    """Loads, stores and atomics whose suffixes change no value."""
    for suffix in (".nc", ".ca", ".cg", ".L1::no_allocate", ".nc.L1::evict_last"):
        yield Case(
            f"ld.global{suffix}",
            f"ld.global{suffix}.v2.u32 {{%d0, %d1}}, [%in];",
            ("x64",),
            ("b32", "b32"),
        )
    for suffix in (".volatile", ".relaxed.gpu", ".acquire.sys"):
        store = suffix.replace("acquire", "release")
        yield Case(
            f"ld{suffix}.global",
            f"st{store}.global.u32 [%out+8], %a0;\nld{suffix}.global.u32 %d0, [%out+8];",
            ("x32",),
            ("b32", "memory"),
        )
    for suffix in (".relaxed.cta", ".acquire.gpu", ".acq_rel.sys"):
        yield Case(
            f"atom{suffix}.global.add.u32",
            f"atom{suffix}.global.add.u32 %d0, [%out+16], %a0;\nmembar.gl;\n"
            f"fence.acq_rel.gpu;\natom{suffix}.global.or.b32 %d1, [%out+16], %a1;",
            ("x32", "x32"),
            ("b32", "b32", "memory"),
        )
    for size, given in ((4, ""), (8, ""), (16, ""), (16, ", 4"), (8, ", 0")):
        cached = "cg" if size == 16 else "ca"
        yield Case(
            f"cp.async {size}{given}",
            "st.shared.v2.b64 [%sh], {-1, -1};\n"
            f"cp.async.{cached}.shared.global [%sh], [%in], {size}{given};\n"
            "cp.async.commit_group;\ncp.async.wait_group 0;\n"
            "ld.shared.v2.b64 {%d0, %d1}, [%sh];",
            ("x64", "x64"),
            ("b64", "b64"),
            target="sm_80",
        )


def vectors(space: str, place: str, t: str, registers: str, count: int) -> Case:
    names = ", ".join(f"%{registers}{i}" for i in range(count))
    turned = ", ".join(f"%{registers}{count - 1 - i}" for i in range(count))
    return Case(
        f"ld.{space}.v{count}.{t} and back",
        f"st.{space}.v2.b64 [{place}], {{0, 0}};\n"
        f"ld.global.v{count}.{t} {{{names}}}, [%in];\nst.{space}.v{count}.{t} [{place}], "
        f"{{{turned}}};\nld.{space}.v2.b64 {{%x4, %x5}}, [{place}];\n"
        + ("st.global.v2.b64 [%out+16], {%x4, %x5};" if space == "shared" else "")
        + "\nst.global.b64 [%out], 0;",
        ("x64", "x64"),
        ("memory", "memory", "memory", "memory"),
    )


def every_case() -> Iterator[Case]:
    yield from exchanges()
    yield from divergent()
    yield from atomics()
    yield from accesses()
