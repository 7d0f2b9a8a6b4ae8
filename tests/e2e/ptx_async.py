"""Cases of copies into shared memory that are waited for, and of the barriers that lie there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import xor

from ptx_cases import BLOCK, Case, Formula, Row


def copies() -> Iterator[Case]:
    """Each address has an offset of its own."""
    yield Case(
        "cp.async with two offsets",
        "add.u32 %r0, %sh, -32;\nst.shared.v2.b64 [%sh], {-1, -1};\n"
        "cp.async.cg.shared.global [%r0+32], [%in+16], 16;\n"
        "cp.async.wait_all;\nld.shared.v2.b64 {%d0, %d1}, [%sh];",
        ("x64",) * 4,
        ("b64", "b64"),
        target="sm_80",
        formula=lambda values: [(row[2], row[3]) for row in values],
    )
    yield Case(
        "cp.async that ignores its source",
        "and.b32 %r1, %me, 1;\nsetp.eq.u32 %p1, %r1, 0;\n"
        "st.shared.v2.b64 [%sh], {-1, -1};\n"
        "cp.async.ca.shared.global [%sh], [%in+8], 8, %p1;\n"
        "cp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.v2.b64 {%d0, %d1}, [%sh];",
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_80",
        formula=lambda values: [
            (row[1] if i % 2 else 0, (1 << 64) - 1) for i, row in enumerate(values)
        ],
    )
    yield Case(
        "cp.async with a policy",
        "createpolicy.fractional.L2::evict_last.b64 %x0, 1.0;\n"
        "cp.async.cg.shared.global.L2::cache_hint [%sh], [%in], 16, 16, %x0;\n"
        "cp.async.wait_all;\nld.shared.v2.b64 {%d0, %d1}, [%sh];",
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_80",
        formula=lambda values: [(row[0], row[1]) for row in values],
    )


def partner(values: Sequence[Row]) -> list[Row]:
    """What the thread has that is as far from the block's end as this one from its begin."""
    return [values[i - i % BLOCK + BLOCK - 1 - i % BLOCK] for i in range(len(values))]


SPIN = """WAIT:
mbarrier.{wait}.shared.b64 %p0, [%r0], {what};
@!%p0 bra WAIT;
"""
PARTNER = (
    f"sub.u32 %r2, {BLOCK - 1}, %me;\nmov.u32 %r3, room;\nmad.lo.u32 %r2, %r2, 16, %r3;\n"
    "ld.shared.v2.b64 {%d0, %d1}, [%r2];"
)
OWN = ".shared .align 8 .b64 own;"
ILLEGAL_INSTRUCTION = 715


def meeting(name: str, arrival: str, wait: str, what: str) -> Case:
    """All threads of a block meet at one barrier, then read what another has written."""
    return Case(
        name,
        "mov.u32 %r0, own;\nsetp.eq.u32 %p0, %me, 0;\n"
        f"@%p0 mbarrier.init.shared.b64 [%r0], {BLOCK};\nbar.sync 0;\n"
        f"st.shared.v2.b64 [%sh], {{%a0, %a1}};\n{arrival}\n"
        + SPIN.format(wait=wait, what=what)
        + PARTNER,
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_90",
        version="8.0",
        declarations=OWN,
        formula=partner,
    )


def meetings() -> Iterator[Case]:
    arrive = "mbarrier.arrive.shared.b64 %x0, [%r0];"
    yield meeting("mbarrier.try_wait", arrive, "try_wait", "%x0")
    yield meeting("mbarrier.try_wait with a time", arrive, "try_wait", "%x0, 1000")
    yield meeting("mbarrier.test_wait.parity", arrive, "test_wait.parity", "0")
    yield meeting(
        "mbarrier.arrive of two for every second",
        "and.b32 %r1, %me, 1;\nsetp.eq.u32 %p1, %r1, 0;\n"
        "@%p1 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r0], 2;\n"
        "mov.u32 %r1, 0;",
        "try_wait.parity.acquire.cta",
        "%r1",
    )
    yield meeting(
        "mbarrier.arrive_drop of all",
        "mbarrier.arrive_drop.shared.b64 %x0, [%r0];",
        "test_wait",
        "%x0",
    )
    yield meeting(
        "cp.async.mbarrier.arrive.noinc",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r0];",
        "try_wait.parity",
        "0",
    )
    yield meeting(
        "cp.async.mbarrier.arrive",
        "cp.async.mbarrier.arrive.shared.b64 [%r0];\n" + arrive,
        "try_wait",
        "%x0",
    )


def alone(name: str, body: str, *row: int, version: str = "8.0") -> Case:
    return Case(
        name,
        body,
        ("x32",),
        ("pred",) * len(row),
        target="sm_90",
        version=version,
        threads=64,
        formula=lambda values: [row] * len(values),
    )


def phases() -> Iterator[Case]:
    """Each thread alone with a barrier of its own."""

    yield alone(
        "mbarrier.test_wait of both phases",
        "mbarrier.init.shared.b64 [%sh+8], 2;\n"
        "mbarrier.arrive.shared.b64 %x0, [%sh+8];\n"
        "mbarrier.test_wait.shared.b64 %d0, [%sh+8], %x0;\n"
        "mbarrier.arrive.shared.b64 %x1, [%sh+8];\n"
        "mbarrier.test_wait.shared.b64 %d1, [%sh+8], %x0;\n"
        "mbarrier.test_wait.shared.b64 %d2, [%sh+8], %x1;\n"
        "mbarrier.arrive.shared.b64 %x2, [%sh+8];\n"
        "mbarrier.test_wait.shared.b64 %d3, [%sh+8], %x2;\n"
        "mbarrier.test_wait.parity.shared.b64 %d4, [%sh+8], 0;\n"
        "mbarrier.test_wait.parity.shared.b64 %d5, [%sh+8], 1;",
        0,
        1,
        1,
        0,
        1,
        0,
    )
    yield alone(
        "mbarrier.arrive_drop lowers what is expected",
        "mbarrier.init.shared.b64 [%sh], 3;\n"
        "mbarrier.arrive_drop.shared.b64 %x0, [%sh];\n"
        "mbarrier.arrive.noComplete.shared.b64 %x0, [%sh], 1;\n"
        "mbarrier.test_wait.shared.b64 %d0, [%sh], %x0;\n"
        "mbarrier.arrive.shared.b64 %x0, [%sh];\n"
        "mbarrier.test_wait.shared.b64 %d1, [%sh], %x0;\n"
        "mbarrier.arrive.shared.b64 %x0, [%sh], 1;\n"
        "mbarrier.test_wait.shared.b64 %d2, [%sh], %x0;\n"
        "mbarrier.arrive.shared.b64 %x0, [%sh];\n"
        "mbarrier.test_wait.shared.b64 %d3, [%sh], %x0;\n"
        "mbarrier.inval.shared.b64 [%sh];",
        0,
        1,
        0,
        1,
    )


def counted_bytes() -> Iterator[Case]:
    yield alone(
        "mbarrier.expect_tx holds a phase",
        "mbarrier.init.shared.b64 [%sh], 1;\n"
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %x0, [%sh], 48;\n"
        "mbarrier.test_wait.shared.b64 %d0, [%sh], %x0;\n"
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%sh], 32;\n"
        "mbarrier.test_wait.shared.b64 %d1, [%sh], %x0;\n"
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%sh], 16;\n"
        "mbarrier.test_wait.shared.b64 %d2, [%sh], %x0;\n"
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%sh], 8;\n"
        "mbarrier.arrive.shared.b64 %x0, [%sh];\n"
        "mbarrier.test_wait.shared.b64 %d3, [%sh], %x0;\n"
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%sh], 8;\n"
        "mbarrier.test_wait.shared.b64 %d4, [%sh], %x0;",
        0,
        0,
        1,
        0,
        1,
    )


def bulk() -> Iterator[Case]:
    """One thread copies what all threads of its block have, in both directions."""
    size = 16 * BLOCK
    start = (
        "mov.u32 %r0, own;\nmov.u32 %r1, room;\nsetp.eq.u32 %p1, %me, 0;\n"
        "@%p1 mbarrier.init.shared.b64 [%r0], 1;\nbar.sync 0;\n"
    )
    yield Case(
        "cp.async.bulk to shared memory",
        start
        + f"@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {size};\n"
        + "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        + f"[%r1], [%in], {size}, [%r0];\n"
        + SPIN.format(wait="try_wait.parity", what="0")
        + PARTNER
        + " // not %sh, whose room it is",
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_90",
        version="8.0",
        declarations=OWN,
        formula=partner,
    )
    yield Case(
        "cp.async.bulk to global memory",
        "mov.u32 %r1, room;\nsetp.eq.u32 %p1, %me, 0;\nst.shared.v2.b64 [%sh], {%a1, %a0};\n"
        "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
        f"@%p1 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], {size};\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nbar.sync 0;",
        ("x64", "x64"),
        ("memory", "memory"),
        target="sm_90",
        version="8.0",
        formula=lambda values: [(row[1], row[0]) for row in values],
    )


Join = Callable[[int, int], int]


def sum_of(a: int, b: int) -> int:
    return (a + b) & (1 << 64) - 1


def least_of(a: int, b: int) -> int:
    """Of signed numbers."""
    return min(a, b, key=lambda v: v ^ 1 << 63)


def reductions() -> Iterator[Case]:
    """All threads' words at once, onto what one of them has put into global memory."""
    size = 16 * BLOCK
    for t, op, join in (("u64", "add", sum_of), ("s64", "min", least_of), ("b64", "xor", xor)):

        def formula(values: Sequence[Row], join: Join = join) -> list[Row]:
            return [(join(a, c), join(b, d)) for a, b, c, d in values]

        yield Case(
            f"cp.reduce.async.bulk.{op}.{t} to global memory",
            "mov.u32 %r1, room;\nsetp.eq.u32 %p1, %me, 0;\n"
            "st.shared.v2.b64 [%sh], {%a2, %a3};\nst.global.v2.b64 [%out], {%a0, %a1};\n"
            "fence.proxy.async;\nbar.sync 0;\n"
            f"@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t}"
            f" [%out], [%r1], {size};\n"
            "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nbar.sync 0;",
            ("x64",) * 4,
            ("memory", "memory"),
            target="sm_90",
            formula=formula,
        )


def within_shared() -> Iterator[Case]:
    """Blocks of a cluster may copy what is shared, each to itself as well; others may not."""
    size = 16 * BLOCK
    body = (
        "mov.u32 %r0, own;\nmov.u32 %r1, room;\nsetp.eq.u32 %p1, %me, 0;\n"
        "@%p1 mbarrier.init.shared.b64 [%r0], 1;\nbar.sync 0;\n"
        "mov.u32 %r2, %cluster_ctarank;\n"
        "st.shared.v2.b64 [%sh], {%a0, %a1};\nfence.proxy.async;\nbar.sync 0;\n"
        f"@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {size};\n"
        "mov.u32 %r4, other;\nmapa.shared::cluster.u32 %r5, %r4, %r2;\n"
        "mapa.shared::cluster.u32 %r6, %r0, %r2;\n"
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        f"[%r5], [%r1], {size}, [%r6];\n"
        + SPIN.format(wait="try_wait.parity", what="0")
        + "mad.lo.u32 %r4, %me, 16, %r4;\nld.shared.v2.b64 {%d1, %d0}, [%r4];"
    )
    declarations = OWN + f"\n.shared .align 16 .b8 other[{size}];"
    yield Case(
        "cp.async.bulk within shared memory of no cluster",
        body,
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_90",
        version="8.0",
        declarations=declarations,
        error=ILLEGAL_INSTRUCTION,
    )
    yield Case(
        "cp.async.bulk within shared memory of a cluster",
        body,
        ("x64", "x64"),
        ("b64", "b64"),
        target="sm_90",
        version="8.0",
        declarations=declarations,
        directives=" .reqnctapercluster 2, 1, 1",
        formula=lambda values: [(row[1], row[0]) for row in values],
    )


def counted(name: str, send: str, formula: Formula, inputs: int) -> Case:
    """Each thread sends 16 bytes to the one as far from the end; a barrier counts what comes."""
    return Case(
        name,
        "mov.u32 %r0, own;\nmov.u32 %r1, %cluster_ctarank;\nsetp.eq.u32 %p1, %me, 0;\n"
        "@%p1 mbarrier.init.shared.b64 [%r0], 1;\nst.shared.v2.b64 [%sh], {%a0, %a1};\n"
        "bar.sync 0;\n"
        f"@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {16 * BLOCK};\n"
        f"sub.u32 %r2, {BLOCK - 1}, %me;\nmov.u32 %r3, room;\nmad.lo.u32 %r2, %r2, 16, %r3;\n"
        "mapa.shared::cluster.u32 %r2, %r2, %r1;\nmapa.shared::cluster.u32 %r4, %r0, %r1;\n"
        f"{send}\n"
        + SPIN.format(wait="try_wait.parity", what="0")
        + "ld.shared.v2.b64 {%d0, %d1}, [%sh];",
        ("x64",) * inputs,
        ("b64", "b64"),
        target="sm_90",
        version="8.1",
        declarations=OWN,
        directives=" .reqnctapercluster 2, 1, 1",
        formula=formula,
    )


def summed(values: Sequence[Row]) -> list[Row]:
    pairs = zip(values, partner(values), strict=True)
    return [(sum_of(a[0], b[2]), sum_of(a[1], b[3])) for a, b in pairs]


def stores() -> Iterator[Case]:
    form = "shared::cluster.mbarrier::complete_tx::bytes"
    yield counted(
        "st.async of two words",
        f"st.async.{form}.v2.b64 [%r2], {{%a2, %a3}}, [%r4];",
        lambda values: [row[2:4] for row in partner(values)],
        4,
    )
    yield counted(
        "red.async of two words",
        f"red.async.relaxed.cluster.{form}.add.u64 [%r2], %a2, [%r4];\n"
        f"red.async.relaxed.cluster.{form}.add.u64 [%r2+8], %a3, [%r4];",
        summed,
        4,
    )


def every_case() -> Iterator[Case]:
    yield from copies()
    yield from meetings()
    yield from phases()
    yield from counted_bytes()
    yield from bulk()
    yield from reductions()
    yield from within_shared()
    yield from stores()
