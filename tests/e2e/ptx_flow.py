"""Cases of constants as operands, special registers, branches, calls and local memory."""

from __future__ import annotations

from collections.abc import Iterator

from ptx_cases import BLOCK, Case, one


def constants() -> Iterator[Case]:
    yield one("add.f32", "f32", tail="0f3FC00000")
    yield one("add.f32", "f32", tail="1.5", name="add.f32 of a decimal")
    yield one("mul.f32", "f32", tail="-0.1", name="mul.f32 of a decimal")
    yield one("mul.f32", "f32", tail="0d3FB999999999999A", name="mul.f32 of a long constant")
    yield one("mul.f64", "f64", "b64", tail="0d3FB999999999999A")
    yield one("mul.f64", "f64", "b64", tail="0f3DCCCCCD", name="mul.f64 of a short constant")
    yield one("add.s32", "x32", tail="-5")
    yield one("add.s64", "x64", "b64", tail="-1")
    yield one("add.s16", "x16", "b16", tail="-129")
    yield one("and.b16", "x16", "b16", tail="0xFFF0")
    yield one("and.b64", "x64", "b64", tail="-16")
    yield one("xor.b32", "x32", tail="0b1011")
    yield one("xor.b32", "x32", tail="017")
    yield one("xor.b32", "x32", tail="4294967295U")
    yield one("setp.lt.s16", "x16", "pred", tail="-3")
    yield one("setp.gt.s64", "x64", "pred", tail="-3")
    yield one("setp.lt.u64", "x64", "pred", tail="0x8000000000000000")
    yield one("setp.lt.f64", "f64", "pred", tail="0d3FF0000000000000")
    yield one("mul.wide.s16", "x16", tail="-7")
    yield one("mul.wide.s32", "x32", "b64", tail="-7")
    yield one("mul.wide.u32", "x32", "b64", tail="0xFFFFFFFF")
    yield one("mad.lo.s64", "x64", "b64", tail="-3, -5")
    yield one("div.s32", "x32", tail="-7")
    yield one("div.u32", "x32", tail="10")
    yield one("rem.s64", "x64", "b64", tail="1000")
    yield one("shr.s64", "x64", "b64", tail="63")
    yield one("bfe.s32", "x32", tail="4, 8")
    yield one("bfi.b64", "x64 x64", "b64", tail="16, 20")
    yield one("slct.b32.s32", "x32", tail="7, -1")


def registers() -> Iterator[Case]:
    for register in ("tid.x", "tid.y", "ntid.x", "ntid.z", "ctaid.x", "ctaid.y", "nctaid.x"):
        yield special(register, "b32")
    for register in ("laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt"):
        yield special(register, "b32")
    yield special("lanemask_ge", "b32")
    yield Case(
        "%current_graph_exec outside of graphs",
        "mov.u64 %d0, %current_graph_exec;",
        ("x32",),
        ("b64",),
        version="8.0",
        formula=lambda values: [(0,)] * len(values),
    )
    yield Case("WARP_SZ", "add.u32 %d0, %a0, WARP_SZ;", ("x32",))


def special(register: str, output: str) -> Case:
    return Case(f"%{register}", f"mov.u32 %d0, %{register};", ("x32",), (output,))


COLLATZ = """and.b32 %r1, %a0, 0xffff;
add.u32 %r1, %r1, 1;
mov.u32 %d0, 0;
LOOP:
setp.eq.u32 %p0, %r1, 1;
@%p0 bra DONE;
and.b32 %r2, %r1, 1;
setp.ne.u32 %p1, %r2, 0;
@%p1 mad.lo.u32 %r1, %r1, 3, 1;
@!%p1 shr.u32 %r1, %r1, 1;
add.u32 %d0, %d0, 1;
bra LOOP;
DONE:
bar.warp.sync 0xffffffff;
activemask.b32 %d1;"""

TABLE = """and.b32 %r1, %a0, 3;
WAYS: .branchtargets L0, L1, L2, L3;
brx.idx %r1, WAYS;
L0: add.u32 %d0, %a1, 10; bra.uni END;
L1: mul.lo.u32 %d0, %a1, 3; bra.uni END;
L2: not.b32 %d0, %a1; bra.uni END;
L3: shl.b32 %d0, %a1, 5;
END:"""

LOCAL = """{ .local .align 8 .b8 array[64];
.reg .b64 %at, %to;
mov.u64 %at, array;
and.b32 %r1, %a0, 7;
mul.wide.u32 %x1, %r1, 8;
st.local.v2.b64 [%at], {0, 1};
st.local.v2.b64 [%at+16], {2, 3};
st.local.v2.b64 [%at+32], {4, 5};
st.local.v2.b64 [%at+48], {6, 7};
add.u64 %x2, %at, %x1;
st.local.u64 [%x2], %a1;
cvta.local.u64 %to, %at;
and.b32 %r2, %a2, 7;
mad.wide.u32 %to, %r2, 8, %to;
ld.u64 %d0, [%to];
isspacep.local %d1, %to; }"""


#: Of two frames, the first with as much before it as is not aligned.
ALIGNED = """.func (.param .b64 low) inner(.param .b64 one)
{
.local .align 512 .b8 array[24];
.reg .b64 %v, %at;
ld.param.u64 %v, [one];
mov.u64 %at, array;
and.b64 %at, %at, 511;
add.u64 %v, %v, %at;
st.param.u64 [low], %v;
ret;
}"""

ALIGNED_CALL = """{ .local .align 4 .b8 odd[20];
.local .align 256 .b8 array[40];
.reg .b64 %at;
.param .b64 p0; .param .b64 back;
mov.u64 %at, array;
cvta.local.u64 %x0, %at;
and.b64 %x0, %x0, 255;
mov.u64 %x1, odd;
and.b64 %x1, %x1, 3;
add.u64 %x0, %x0, %x1;
add.u64 %x0, %x0, %a0;
st.param.u64 [p0], %x0;
call.uni (back), inner, (p0);
ld.param.u64 %d0, [back]; }"""


TWICE = """.func (.param .b64 sum) twice(.param .b64 one, .param .b32 count)
{
.reg .b64 %v, %w;
.reg .b32 %n;
ld.param.u64 %v, [one];
ld.param.u32 %n, [count];
cvt.s64.s32 %w, %n;
mad.lo.s64 %v, %v, 2, %w;
st.param.u64 [sum], %v;
ret;
}"""

CALL = """{ .param .b64 p0; .param .b32 p1; .param .b64 back;
st.param.u64 [p0], %a0;
st.param.u32 [p1], %a1;
call.uni (back), twice, (p0, p1);
ld.param.u64 %d0, [back]; }"""

INDIRECT = """PROTO: .callprototype (.param .b64 _) _ (.param .b64 _, .param .b32 _);
{ .param .b64 p0; .param .b32 p1; .param .b64 back; .reg .b64 %f;
mov.u64 %f, twice;
st.param.u64 [p0], %a0;
st.param.u32 [p1], %a1;
call (back), %f, (p0, p1), PROTO;
ld.param.u64 %d0, [back]; }"""

TABLES = """.const .align 8 .b64 squares[8] = {0, 1, 4, 9, 16, 25, 36, -49};
.global .align 4 .f32 halves[4] = {0.5, 0f3FC00000, -2.5, 3.5};
.global .align 2 .b16 words[4] = {1, 0xFFFF, -2, 3};
.global .align 8 .u64 places[2] = {halves, words+2};"""

LOOKUP = """and.b32 %r1, %a0, 7;
mov.u64 %x0, squares;
mad.wide.u32 %x0, %r1, 8, %x0;
ld.const.u64 %d0, [%x0];
and.b32 %r2, %a0, 3;
ld.global.u64 %x1, [places];
mad.wide.u32 %x1, %r2, 4, %x1;
ld.global.f32 %d1, [%x1];
ld.global.u64 %x2, [places+8];
ld.global.s16 %d2, [%x2];
ld.global.s16 %d3, [words+4];"""


def flow() -> Iterator[Case]:
    yield Case("a loop of other lengths", COLLATZ, ("x32",), ("b32", "b32"))
    yield Case("brx.idx", TABLE, ("x32", "x32"))
    yield Case("an array in local memory", LOCAL, ("x32", "x64", "x32"), ("b64", "pred"))
    yield Case(
        "local memory is aligned as it says",
        ALIGNED_CALL,
        ("x64",),
        ("b64",),
        declarations=ALIGNED,
        formula=lambda values: [(value,) for (value,) in values],
    )
    inputs = ("x64", "x32")
    yield Case("call", CALL, inputs, ("b64",), declarations=TWICE)
    yield Case("call through a pointer", INDIRECT, inputs, ("b64",), declarations=TWICE)
    outputs = ("b64", "b32", "b32", "b32")
    yield Case("initialised variables", LOOKUP, ("x32",), outputs, declarations=TABLES)
    yield Case(
        "selection by guards",
        "mov.u32 %d0, 1;\nsetp.lt.s32 %p0, %a0, %a1;\n@%p0 mov.u32 %d0, 2;\n"
        "@!%p0 add.u32 %d0, %d0, %a1;\n@%p0 bra SKIP;\nxor.b32 %d0, %d0, %a0;\nSKIP:",
        ("x32", "x32"),
    )
    yield Case(
        "a scan through shared memory",
        f"st.shared.u32 [%sh], %a0;\nbar.sync 0;\nxor.b32 %r1, %me, {BLOCK - 1};\n"
        "mov.u32 %r2, room;\nmad.lo.u32 %r2, %r1, 16, %r2;\nld.shared.u32 %r3, [%r2];\n"
        "bar.sync 0;\nadd.u32 %d0, %r3, %a0;",
        ("x32",),
    )


def every_case() -> Iterator[Case]:
    yield from constants()
    yield from registers()
    yield from flow()
