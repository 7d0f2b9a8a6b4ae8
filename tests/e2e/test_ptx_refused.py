"""Hostile PTX on the soft GPU: what is not known, and what no kernel may do, is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupool_common import paths
from ptx_cases import Case
from ptx_file import run_cases
from toolchain import Toolchain

ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION, MISALIGNED, INVALID_PTX = 700, 715, 716, 218
LAUNCH_FAILED = 719

MMA = "mma.sync.aligned"
SPARSE = "mma.sp.sync.aligned"
WGMMA = "wgmma.mma_async.sync.aligned"
FOUR = "{%r0, %r1, %r2, %r3}"
TWO = "{%r4, %r5}"
TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
PRODUCT = f"{WGMMA}.m64n8k16.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;"

#: PTX that is not understood: the module does not load.
REFUSED = {
    "managed memory of a block": ".shared .attribute(.managed) .align 4 .b32 block;",
    "an attribute that is none": ".global .attribute(.other) .align 4 .b32 other;",
    "attributes without an end": ".global .attribute(.managed .align 4 .b32 open;",
    "mma without a shape": f"{MMA}.row.col.f32.f16.f16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma of no known shape": f"{MMA}.m16n8k999.row.col.f32.f16.f16.f32 "
    f"{FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma of a shape beyond numbers": f"{MMA}.m4294967296n8k8.row.col.f32.f16.f16.f32 "
    f"{FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma of types that do not meet": f"{MMA}.m16n8k16.row.col.f32.f16.bf16.f32 "
    f"{FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma with a sum of no type": f"{MMA}.m16n8k16.row.col.s32.f16.f16.s32 "
    f"{FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma with too few registers": f"{MMA}.m16n8k16.row.col.f32.f16.f16.f32 "
    f"{FOUR}, {TWO}, {TWO}, {FOUR};",
    "mma into a number": f"{MMA}.m16n8k8.row.col.f32.f16.f16.f32 "
    f"{{1, 2, 3, 4}}, {TWO}, {{%r4}}, {FOUR};",
    "mma with three orders": f"{MMA}.m16n8k16.row.col.row.f32.f16.f16.f32 "
    f"{FOUR}, {FOUR}, {TWO}, {FOUR};",
    "mma in pieces": f"mma.m16n8k16.row.col.f32.f16.f16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR};",
    "sparse mma of a lane that is not there": f"{SPARSE}.m16n8k16.row.col.f32.f16.f16.f32 "
    f"{FOUR}, {TWO}, {TWO}, {FOUR}, %r6, 0x4;",
    "sparse mma without its selector": f"{SPARSE}.m16n8k16.row.col.f32.f16.f16.f32 "
    f"{FOUR}, {TWO}, {TWO}, {FOUR}, %r6;",
    "sparse mma of doubles": f"{SPARSE}.m16n8k4.row.col.f64.f64.f64.f64 "
    "{%x0, %x1, %x2, %x3}, {%x4}, {%x5}, {%x0, %x1, %x2, %x3}, %r6, 0;",
    "wgmma of no known shape": f"{WGMMA}.m64n12k16.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "wgmma of another depth": f"{WGMMA}.m64n8k8.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "wgmma of integers of a width that they lack": f"{WGMMA}.m64n40k32.s32.s8.s8 "
    f"{FOUR}, %x0, %x1, %p0;",
    "wgmma of types that do not meet": f"{WGMMA}.m64n8k16.f32.f16.bf16 "
    f"{FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "wgmma with too few registers": f"{WGMMA}.m64n16k16.f32.f16.f16 "
    f"{FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "wgmma with too many registers": f"{WGMMA}.m64n8k16.f32.f16.f16 "
    f"{{{', '.join(['%r0'] * 129)}}}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "wgmma of a B in registers": f"{WGMMA}.m64n8k16.f32.f16.f16 "
    f"{FOUR}, %x0, {TWO}, %p0, 1, 1, 0, 0;",
    "wgmma with a scale of two": f"{WGMMA}.m64n8k16.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 2, 1, 0, 0;",
    "wgmma that turns fp8": f"{WGMMA}.m64n8k32.f32.e4m3.e4m3 {FOUR}, %x0, %x1, %p0, 1, 1, 1, 0;",
    "wgmma without an order": f"{WGMMA}.m64n8k16.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 1, 1, 0;",
    "wgmma in pieces": f"wgmma.mma_async.m64n8k16.f32.f16.f16 {FOUR}, %x0, %x1, %p0, 1, 1, 0, 0;",
    "sparse wgmma of a lane that is not there": "wgmma.mma_async.sp.sync.aligned"
    f".m64n8k32.f32.f16.f16 {FOUR}, %x0, %x1, %r4, 2, %p0, 1, 1, 0, 0;",
    "nine elements in braces": f"st.shared.v8.b32 [%sh], {{{', '.join(['%r0'] * 9)}}};",
    "wmma.load of a sum as a factor": "wmma.load.a.sync.aligned.row.m16n16k16.f32 "
    "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%in], 16;",
    "wmma.store of a factor": f"wmma.store.d.sync.aligned.row.m16n16k16.s8 [%out], {TWO}, 16;",
    "wmma.load without brackets": f"wmma.load.a.sync.aligned.row.m16n16k16.s8 {TWO}, %in, 16;",
    "ldmatrix of no count": f"ldmatrix.sync.aligned.m8n8.shared.b16 {TWO}, [%sh];",
    "ldmatrix with other registers": f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {TWO}, [%sh];",
    "ldmatrix from global memory": f"ldmatrix.sync.aligned.m8n8.x2.global.b16 {TWO}, [%in];",
    "cp.async.bulk of tensors of no dimension": "cp.async.bulk.tensor.shared::cluster.global.tile"
    ".mbarrier::complete_tx::bytes [%sh], [%in, {%r0}], [%sh];",
    "cp.async.bulk of tensors at too few coordinates": f"{TENSOR} [%sh], [%in, {{%r0}}], [%sh];",
    "cp.async.bulk of tensors at six coordinates": f"{TENSOR} [%sh], "
    "[%in, {%r0, %r1, %r2, %r3, %r4, %r5}], [%sh];",
    "cp.async.bulk of tensors without a barrier": f"{TENSOR} [%sh], [%in, {TWO}];",
    "cp.async.bulk of tensors with more": f"{TENSOR} [%sh], [%in, {TWO}], [%sh], %h0;",
    "cp.async.bulk of columns without offsets": "cp.async.bulk.tensor.3d.shared::cluster.global"
    ".im2col.mbarrier::complete_tx::bytes [%sh], [%in, {%r0, %r1, %r2}], [%sh];",
    "cp.async.bulk of columns of a plane": "cp.async.bulk.tensor.2d.shared::cluster.global"
    f".im2col.mbarrier::complete_tx::bytes [%sh], [%in, {TWO}], [%sh], {{}};",
    "cp.async.bulk that stores columns": "cp.async.bulk.tensor.3d.global.shared::cta"
    ".im2col_no_offs.bulk_group [%in, {%r0, %r1, %r2}], [%sh];",
    "cp.async.bulk of tensors into a group that loads": "cp.async.bulk.tensor.2d"
    f".shared::cluster.global.tile.bulk_group [%sh], [%in, {TWO}];",
    "cp.reduce.async.bulk of tensors by exchange": "cp.reduce.async.bulk.tensor.2d.global"
    f".shared::cta.mul.tile.bulk_group [%in, {TWO}], [%sh];",
    "cp.async.bulk without a barrier": "cp.async.bulk.shared::cluster.global"
    ".mbarrier::complete_tx::bytes [%sh], [%in], 16;",
    "cp.async.bulk from global to global": "cp.async.bulk.global.global.bulk_group"
    " [%out], [%in], 16;",
    "cp.reduce.async.bulk of bytes": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u8"
    " [%out], [%sh], 16;",
    "cp.reduce.async.bulk from global memory": "cp.reduce.async.bulk.shared::cluster.global"
    ".mbarrier::complete_tx::bytes.add.u32 [%sh], [%in], 16, [%sh];",
    "cp.reduce.async.bulk without a size": "cp.reduce.async.bulk.global.shared::cta.bulk_group"
    ".add.u32 [%out], [%sh];",
    "tensormap.replace of no field": "tensormap.replace.tile.shared::cta.b1024.b32 [%sh], 1;",
    "tensormap.replace of a sixth dimension": "tensormap.replace.tile.box_dim.shared::cta"
    ".b1024.b32 [%sh], 5, 1;",
    "tensormap.replace of a dimension in a register": "tensormap.replace.tile.box_dim"
    ".shared::cta.b1024.b32 [%sh], %r0, 1;",
    "tensormap.replace without a value": "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%sh];",
    "tensormap.cp_fenceproxy back": "tensormap.cp_fenceproxy.shared::cta.tensormap::generic"
    ".release.gpu.sync.aligned [%sh], [%sh], 128;",
    "st.async without a barrier": "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"
    " [%sh], %r0;",
    "st.async of three words": "st.async.shared::cluster.mbarrier::complete_tx::bytes.v3.b32"
    " [%sh], {%r0, %r1, %r2}, [%sh];",
    "st.async that counts nothing": "st.async.shared::cluster.b32 [%sh], %r0, [%sh];",
    "red.async of two words": "red.async.relaxed.cluster.shared::cluster"
    ".mbarrier::complete_tx::bytes.add.u32 [%sh], {%r0, %r1}, [%sh];",
    "red.async by exchange": "red.async.relaxed.cluster.shared::cluster"
    ".mbarrier::complete_tx::bytes.exch.b32 [%sh], %r0, [%sh];",
    "st.bulk": "st.bulk.shared::cta [%sh], 16, 0;",
    "cp.async of six bytes": "cp.async.ca.shared.global [%sh], [%in], 6;",
    "mbarrier of 32 bits": "mbarrier.init.shared.b32 [%sh], 1;",
    "mbarrier.init without a count": "mbarrier.init.shared.b64 [%sh];",
    "mbarrier.init in global memory": "mbarrier.init.global.b64 [%out], 1;",
    "mbarrier.test_wait without a token": "mbarrier.test_wait.shared.b64 %p0, [%sh];",
    "tex of no place": f"tex.2d.v4.f32.f32 {FOUR}, [%in];",
    "tex of half a place": f"tex.2d.v4.f32.f32 {FOUR}, [%in, {{%r4}}];",
    "tex of five coordinates": f"tex.3d.v4.f32.f32 {FOUR}, [%in, {{%r4, %r5, %r6, %r7, %r0}}];",
    "tex of halves": f"tex.2d.v4.f16.f32 {FOUR}, [%in, {TWO}];",
    "tex with a sampler": f"tex.2d.v4.f32.f32 {FOUR}, [%in, %out, {TWO}];",
    "tex into two registers": f"tex.2d.v4.f32.f32 {TWO}, [%in, {TWO}];",
    "tex of no geometry": f"tex.v4.f32.f32 {FOUR}, [%in, {TWO}];",
    "tex by steps over a cube": f"tex.grad.cube.v4.f32.f32 {FOUR}, [%in, {FOUR}], {FOUR}, {FOUR};",
    "tex of a level without one": f"tex.level.2d.v4.f32.f32 {FOUR}, [%in, {TWO}];",
    "tld4 of a line": f"tld4.r.1d.v4.f32.f32 {FOUR}, [%in, {{%r4}}];",
    "txq of a sampler": "txq.filter_mode.b32 %r0, [%in];",
    "suld of pixels": f"suld.p.2d.v4.b32.trap {FOUR}, [%in, {TWO}];",
    "suld of other registers": f"suld.b.2d.v4.b32.trap {TWO}, [%in, {TWO}];",
    "suld of 32 bytes": "suld.b.2d.v4.b64.trap {%x0, %x1, %x2, %x3}, [%in, {%r4, %r5}];",
    "sured of two words": f"sured.b.add.2d.v2.u32.trap [%in, {TWO}], {TWO};",
    "sured that swaps with care": f"sured.b.cas.2d.u32.trap [%in, {TWO}], %r0;",
    "movmatrix as it lies": "movmatrix.sync.aligned.m8n8.b16 %r0, %r1;",
}

#: PTX that loads and fails while it runs.
FAILING = {
    "ldmatrix of half a row": (
        MISALIGNED,
        f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {TWO}, [%sh+8];",
    ),
    "ldmatrix outside shared memory": (
        ILLEGAL_ADDRESS,
        f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {TWO}, [%sh+1024];",
    ),
    "stmatrix outside shared memory": (
        ILLEGAL_ADDRESS,
        f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [%sh+1048576], {TWO};",
    ),
    "wmma.load outside all memory": (
        ILLEGAL_ADDRESS,
        f"wmma.load.a.sync.aligned.row.m16n16k16.s8 {TWO}, [8], 16;",
    ),
    "wmma.load with a stride beyond memory": (
        ILLEGAL_ADDRESS,
        f"wmma.load.b.sync.aligned.col.m16n16k16.global.s8 {TWO}, [%in], 0x7fffffff;",
    ),
    "wgmma of half a warpgroup": (ILLEGAL_INSTRUCTION, PRODUCT),
    "wgmma.fence of half a warpgroup": (ILLEGAL_INSTRUCTION, "wgmma.fence.sync.aligned;"),
    "mbarrier outside shared memory": (
        ILLEGAL_ADDRESS,
        "mbarrier.init.shared.b64 [%sh+8192], 1;",
    ),
    "mbarrier between two words": (MISALIGNED, "mbarrier.init.shared.b64 [%sh+4], 1;"),
    "mbarrier that expects nobody": (
        ILLEGAL_INSTRUCTION,
        "mbarrier.init.shared.b64 [%sh], 0;",
    ),
    "more arrivals than are pending": (
        ILLEGAL_INSTRUCTION,
        "mbarrier.init.shared.b64 [%sh], 2;\nmbarrier.arrive.shared.b64 %x0, [%sh], 3;",
    ),
    "more bytes than a barrier counts": (
        ILLEGAL_INSTRUCTION,
        "mbarrier.init.shared.b64 [%sh], 2;\n"
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%sh], 0x7fffffff;",
    ),
    "cp.async.bulk of half a unit": (
        MISALIGNED,
        "cp.async.bulk.global.shared::cta.bulk_group [%out], [%sh], 8;",
    ),
    "cp.async.bulk beyond shared memory": (
        ILLEGAL_ADDRESS,
        "cp.async.bulk.global.shared::cta.bulk_group [%out], [%sh], 1048576;",
    ),
    "cp.async.bulk.tensor of no map": (
        ILLEGAL_INSTRUCTION,
        f"mov.b32 %r4, 0;\nmov.b32 %r5, 0;\nand.b64 %x0, %in, -64;\n"
        f"{TENSOR} [%sh], [%x0, {TWO}], [%sh+8];",
    ),
    "cp.async.bulk.tensor of a map outside all memory": (
        ILLEGAL_ADDRESS,
        f"{TENSOR} [%sh], [64, {TWO}], [%sh+8];",
    ),
    "tensormap.replace outside shared memory": (
        ILLEGAL_ADDRESS,
        "tensormap.replace.tile.rank.shared::cta.b1024.b32 [1048576], 1;",
    ),
    "tensormap.replace of an interleaved layout": (
        ILLEGAL_INSTRUCTION,
        "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [0], 1;",
    ),
    "tensormap.replace of seven dimensions": (
        ILLEGAL_INSTRUCTION,
        "tensormap.replace.tile.rank.shared::cta.b1024.b32 [0], 6;",
    ),
    "st.async to a barrier outside shared memory": (
        ILLEGAL_ADDRESS,
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%sh], %r0, [%sh+1048576];",
    ),
    "cp.reduce.async.bulk of half a unit": (
        MISALIGNED,
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%sh], 8;",
    ),
    "cp.async.bulk to a block that is not there": (
        ILLEGAL_ADDRESS,
        "mov.u32 %r0, 0;\nmbarrier.init.shared.b64 [%sh], 1;\nmov.b16 %h0, 4;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%sh], [%in], 16, [%sh+8], %h0;",
    ),
    "tex of no object": (ILLEGAL_ADDRESS, f"tex.2d.v4.f32.f32 {FOUR}, [%in, {TWO}];"),
    "sust to no object": (ILLEGAL_ADDRESS, f"sust.b.2d.b32.zero [%in, {TWO}], {{%r0}};"),
    "txq of no object": (ILLEGAL_ADDRESS, "txq.width.b32 %r0, [%in];"),
    "matrix instructions that differ": (
        ILLEGAL_INSTRUCTION,
        "and.b32 %r0, %me, 1;\nsetp.eq.u32 %p0, %r0, 0;\n"
        "@%p0 bra EVEN;\nmovmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;\nbra JOIN;\n"
        "EVEN:\nmovmatrix.sync.aligned.m8n8.trans.b16 %r2, %r0;\nJOIN:",
    ),
}


#: The same for a whole warpgroup.
FAILING_TOGETHER = {
    "wgmma of an A outside shared memory": (
        ILLEGAL_ADDRESS,
        f"mov.b64 %x0, 0x3fff;\nmov.b64 %x1, 0;\n{PRODUCT}",
    ),
    "wgmma of a B outside shared memory": (
        ILLEGAL_ADDRESS,
        f"mov.b64 %x0, 0;\nmov.b64 %x1, 0xffffffffffffffff;\n{PRODUCT}",
    ),
    "wgmma.wait_group that one warp never reaches": (
        LAUNCH_FAILED,
        "setp.lt.u32 %p1, %me, 32;\n@%p1 bra END;\n"
        "wgmma.wait_group.sync.aligned 0;\nEND:\nbar.sync 0;",
    ),
}


@pytest.fixture(scope="module")
def environment(home: paths.Home, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("softgpu")
    (folder / "libcuda.so.1").symlink_to(home.part(paths.SOFT_GPU))
    return {"LD_LIBRARY_PATH": str(folder)}


def error_of(binary: Path, body: str, environment: dict[str, str], threads: int = 64) -> int:
    body += "\n// %sh"
    case = Case("hostile", body, ("x32",), ("memory",), threads=threads, block=threads)
    return run_cases(binary, {case.name: case}, environment)[case.name].error


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known(name: str, toolchain: Toolchain, environment: dict[str, str]) -> None:
    binary = toolchain.driver_program("ptx_bits")
    assert error_of(binary, REFUSED[name], environment) == INVALID_PTX


@pytest.mark.parametrize("name", FAILING)
def test_what_fails(name: str, toolchain: Toolchain, environment: dict[str, str]) -> None:
    expected, body = FAILING[name]
    binary = toolchain.driver_program("ptx_bits")
    assert error_of(binary, body, environment) == expected


@pytest.mark.parametrize("name", FAILING_TOGETHER)
def test_what_fails_together(name: str, toolchain: Toolchain, environment: dict[str, str]) -> None:
    expected, body = FAILING_TOGETHER[name]
    binary = toolchain.driver_program("ptx_bits")
    assert error_of(binary, body, environment, threads=128) == expected


def test_the_same_body_without_its_mistake_runs(
    toolchain: Toolchain, environment: dict[str, str]
) -> None:
    binary = toolchain.driver_program("ptx_bits")
    body = f"{MMA}.m16n8k16.row.col.f32.f16.f16.f32 {FOUR}, {FOUR}, {TWO}, {FOUR};"
    assert error_of(binary, body, environment) == 0
