/*
 * The operations of the decoded form, and what the decoder leaves in each
 * instruction for the executor. Operands are in PTX's order, destinations first;
 * `type` is the type suffix that names the operation's width (the last one where
 * there are two), `type2` the other one.
 */
#ifndef SG_PTX_OP_H
#define SG_PTX_OP_H

#include "ptx_internal.h"

enum sg_op {
    /* --- pure: one destination, no memory, no other lane ------------------- */
    SG_P_MOV,
    SG_P_PACK, /* mov.b64 d, {a,b,…}: sources low part first, type the whole */
    SG_P_ADD,
    SG_P_SUB,
    SG_P_MUL,
    SG_P_MAD, /* mode: enum sg_half for integers */
    SG_P_MUL24,
    SG_P_MAD24,
    SG_P_FMA,
    SG_P_DIV,
    SG_P_REM,
    SG_P_ABS,
    SG_P_NEG,
    SG_P_MIN,
    SG_P_MAX, /* mode bit 0: .NaN, bit 1: .xorsign.abs */
    SG_P_SAD,
    SG_P_POPC,
    SG_P_CLZ,
    SG_P_BFIND, /* mode 1: .shiftamt */
    SG_P_FNS,
    SG_P_BREV,
    SG_P_BFE,
    SG_P_BFI,
    SG_P_SHL,
    SG_P_SHR,
    SG_P_SHF,  /* mode bit 0: right, bit 1: clamp (else wrap) */
    SG_P_PRMT, /* mode: 0 generic, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16 */
    SG_P_LOP3,
    SG_P_AND,
    SG_P_OR,
    SG_P_XOR,
    SG_P_NOT,
    SG_P_CNOT,
    SG_P_BMSK,
    SG_P_SZEXT, /* mode 1: .clamp (else wrap) */
    SG_P_DP4A,
    SG_P_DP2A,      /* type: of a, type2: of b; DP2A mode 1: .hi */
    SG_P_VABSDIFF4, /* by bytes; type: of a and b, type2: result; mode 1: .add */
    SG_P_SLCT,
    SG_P_SELP,
    SG_P_SET, /* type: result, type2: compared; compare, combine, ftz */
    SG_P_RCP,
    SG_P_SQRT,
    SG_P_RSQRT,
    SG_P_SIN,
    SG_P_COS,
    SG_P_LG2,
    SG_P_EX2,
    SG_P_TANH, /* mode: enum sg_precision */
    SG_P_COPYSIGN,
    SG_P_TESTP,    /* mode: 0 finite 1 infinite 2 number 3 notanumber 4 normal 5 subnormal */
    SG_P_CVT,      /* type: result, type2: source; mode 1: rounds to an integer value (.rni …) */
    SG_P_CVT_PACK, /* cvt.rn.f16x2.f32 d, a, b: a is the upper half */
    SG_P_CVTA,     /* mode 1: .to; space */
    SG_P_ISSPACEP, /* space */
    SG_P_CREATEPOLICY, /* of caches, of which there are none: the decoder makes it mov d, 0 */

    /* --- more than one destination, or carry ------------------------------- */
    SG_P_UNPACK,    /* mov.b64 {a,b}, d */
    SG_P_SETP,      /* x[0] p, x[1] q (kind NONE if absent), a, b, c (combine) */
    SG_P_LOP3_TEST, /* lop3.and, lop3.or: d, p (NONE), a, b, c, table, q; combine */
    SG_P_ADDC,
    SG_P_SUBC, /* mode bit 0: writes the carry, bit 1: reads it */
    SG_P_MADC, /* mode bits 0, 1 likewise, bits 2..3: enum sg_half */

    /* --- memory ------------------------------------------------------------ */
    SG_P_LD, /* x[0..vector) dests, then the address; offset; polls */
    SG_P_ST, /* the address, then x[1..] sources */
    SG_P_LDU,
    SG_P_ATOM,
    SG_P_RED,         /* mode: enum sg_atomic; ATOM: d, address, b[, c]; RED: address, b */
    SG_P_CP_ASYNC,    /* x: enum sg_copy_operand; more: source size, or predicate: ignore it */
    SG_P_CP_BULK,     /* space: where to, mode: where from; more: blocks of the cluster */
    SG_P_RED_BULK,    /* the same from shared memory; mode: enum sg_atomic */
    SG_P_TENSOR_LOAD, /* x: enum sg_tensor_operand; vector: dimensions; mode 1: of columns */
    SG_P_TENSOR_STORE,
    SG_P_TENSOR_REDUCE,  /* mode: enum sg_atomic */
    SG_P_TENSOR_REPLACE, /* mode: enum sg_tensor_field; x: enum sg_tensor_change */
    SG_P_ST_ASYNC,       /* as ST and RED, then the barrier that counts the bytes */
    SG_P_RED_ASYNC,
    SG_P_TEX, /* these: x as enum sg_fetch_operand says */
    SG_P_TLD4,
    SG_P_TXQ, /* txq and suq; mode: enum sg_query */
    SG_P_SULD,
    SG_P_SUST,
    SG_P_SURED,    /* mode: enum sg_atomic */
    SG_P_MBARRIER, /* mode: enum sg_mbarrier; x: enum sg_barrier_operand */
    SG_P_FENCE,    /* membar, fence, cp.async.commit/wait, prefetch, nanosleep, …: nothing */

    /* --- control ----------------------------------------------------------- */
    SG_P_BRA,
    SG_P_BRX,
    SG_P_CALL,
    SG_P_RET,
    SG_P_EXIT,
    SG_P_TRAP,

    /* --- between lanes ------------------------------------------------------ */
    SG_P_BARRIER,     /* mode: enum sg_barrier; x: [d,] barrier[, count][, predicate] */
    SG_P_BAR_WARP,    /* x[0] mask */
    SG_P_BAR_CLUSTER, /* mode 0 arrive, 1 wait */
    SG_P_SHFL,        /* mode: 0 up 1 down 2 bfly 3 idx; x: d, p (NONE if absent), a, b, c, mask */
    SG_P_VOTE,        /* mode: 0 all 1 any 2 uni 3 ballot; x: d, predicate, mask */
    SG_P_MATCH,       /* mode: 0 any 1 all; x: d, p (NONE), a, mask */
    SG_P_ACTIVEMASK,
    SG_P_REDUX, /* REDUX mode: enum sg_atomic; x: d, a, mask */
    SG_P_ELECT, /* x: d (or NONE), p, mask */
    SG_P_MAPA,  /* shared address of a block of the cluster; space */
    SG_P_GETCTARANK,
    SG_P_MMA,       /* mma, or wmma.mma with mode 1; x: the registers of d, a, b, c[, metadata] */
    SG_P_WGMMA,     /* x: d, a or its descriptor, b's, scale-d[, metadata] */
    SG_P_WARPGROUP, /* wgmma.fence and wgmma.wait_group: its warps wait for each other */
    SG_P_MOVMATRIX,
    SG_P_LDMATRIX, /* x: registers, the address; stores alike */
    SG_P_STMATRIX,
    SG_P_WMMA_LOAD, /* x: registers, the address[, the stride]; stores alike */
    SG_P_WMMA_STORE,

    SG_P_COUNT,
};

enum sg_half { SG_H_LO, SG_H_HI, SG_H_WIDE };
enum sg_precision { SG_V_EXACT /* .rn … */, SG_V_APPROX, SG_V_FULL };
enum sg_atomic {
    SG_A_ADD,
    SG_A_MIN,
    SG_A_MAX,
    SG_A_INC,
    SG_A_DEC,
    SG_A_AND,
    SG_A_OR,
    SG_A_XOR,
    SG_A_EXCH,
    SG_A_CAS,
};
enum sg_copy_operand {
    SG_COPY_TO,
    SG_COPY_FROM,
    SG_COPY_SIZE,
    SG_COPY_BARRIER,
    SG_COPY_MORE,
    SG_COPY_OPERANDS
};
enum sg_tensor_operand {
    SG_TENSOR_MAP,
    SG_TENSOR_SHARED,
    SG_TENSOR_BARRIER,
    SG_TENSOR_BLOCKS,
    SG_TENSOR_AT,                        /* coordinates */
    SG_TENSOR_OFFSET = SG_TENSOR_AT + 5, /* of columns */
    SG_TENSOR_OPERANDS = SG_TENSOR_OFFSET + 3
};
enum sg_tensor_field {
    SG_TF_ADDRESS,
    SG_TF_RANK,
    SG_TF_BOX, /* these have a dimension */
    SG_TF_SIZE,
    SG_TF_STRIDE,
    SG_TF_STEP,
    SG_TF_ELEMENT,
    SG_TF_INTERLEAVE,
    SG_TF_SWIZZLE,
    SG_TF_FILL,
};
enum sg_tensor_change { SG_TF_MAP, SG_TF_DIMENSION, SG_TF_VALUE, SG_TF_OPERANDS };
enum sg_mbarrier {
    SG_Q_INIT,
    SG_Q_INVAL,
    SG_Q_ARRIVE,
    SG_Q_ARRIVE_LATER, /* cp.async.mbarrier.arrive: when copies are done, counted in before */
    SG_Q_ARRIVE_EXPECT,
    SG_Q_DROP,
    SG_Q_DROP_EXPECT,
    SG_Q_EXPECT,
    SG_Q_COMPLETE,
    SG_Q_TEST,
    SG_Q_TEST_PARITY,
    SG_Q_PENDING,
};
enum sg_barrier_operand { SG_BARRIER_RESULT, SG_BARRIER_AT, SG_BARRIER_VALUE, SG_BARRIER_OPERANDS };
enum sg_barrier { SG_Y_SYNC, SG_Y_ARRIVE, SG_Y_RED_POPC, SG_Y_RED_AND, SG_Y_RED_OR };

/* Values are kept in 64-bit slots, in the low bits; narrower results have the
 * rest zero. Predicates are 0 or 1. b128 takes two consecutive slots. */

/* exec_pure_*.c: the handler of a pure instruction (op < SG_P_UNPACK) with these
 * types and modifiers, NULL if there is none: CUDA_ERROR_INVALID_PTX at load. */
sg_pure sg_pure_select(const struct sg_insn *in);
/* exec_*.c: the handler of every other instruction, NULL likewise. Also for pure
 * ones: the wrapper that gathers sources, calls in->pure and scatters. */
sg_execute sg_execute_select(const struct sg_insn *in);

#endif
