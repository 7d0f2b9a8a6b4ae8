/* Which handler executes an instruction. */
#include "exec_internal.h"
#include "exec_level.h"
#include "ptx_texture.h"

static bool memory_shape(const struct sg_insn *in)
{
    uint32_t size = sg_type_size(in->type);
    bool count = in->vector == 1 || in->vector == 2 || in->vector == 4 || in->vector == 8;
    return count && size && (size & (size - 1)) == 0 && size * in->vector <= 32 &&
           in->operands > in->vector;
}

static bool barrier_shape(const struct sg_insn *in)
{
    if (in->mode == SG_Y_SYNC || in->mode == SG_Y_ARRIVE)
        return in->operands >= 1 && in->operands <= 2;
    return in->mode <= SG_Y_RED_OR && in->operands >= 3 && in->operands <= 4;
}

static bool unpack_shape(const struct sg_insn *in)
{
    unsigned parts = in->operands ? in->operands - 1u : 0, size = sg_type_size(in->type);
    if (parts < 2 || size % parts)
        return false;
    return size <= 8 || (size == 16 && parts == 2 && in->x[parts].kind == SG_O_REGISTER);
}

static bool copy_shape(const struct sg_insn *in)
{
    if (in->operands != SG_COPY_OPERANDS || in->x[SG_COPY_SIZE].kind != SG_O_IMMEDIATE)
        return false;
    uint64_t n = in->x[SG_COPY_SIZE].value;
    return n == 4 || n == 8 || n == 16;
}

static sg_execute when(bool known, sg_execute execute)
{
    return known ? execute : NULL;
}

static sg_execute select_control(const struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_BRA:
        return sg_do_branch;
    case SG_P_BRX:
        return sg_do_branch_index;
    case SG_P_CALL:
        return sg_do_call;
    case SG_P_RET:
        return sg_do_ret;
    case SG_P_EXIT:
        return sg_do_exit;
    case SG_P_TRAP:
        return sg_do_trap;
    case SG_P_BARRIER:
        return when(barrier_shape(in), sg_do_barrier);
    case SG_P_BAR_CLUSTER:
        return sg_do_cluster_barrier;
    default:
        return NULL;
    }
}

static sg_execute select_lanes(const struct sg_insn *in)
{
    uint32_t size = sg_type_size(in->type);
    switch (in->op) {
    case SG_P_BAR_WARP:
        return when(in->operands >= 1, sg_do_lanes);
    case SG_P_SHFL:
        return when(in->operands >= 6 && in->mode < 4, sg_do_lanes);
    case SG_P_VOTE:
        return when(in->operands >= 3 && in->mode < 4, sg_do_lanes);
    case SG_P_MATCH:
        return when(in->operands >= 4 && (size == 4 || size == 8) && in->mode < 2, sg_do_lanes);
    case SG_P_REDUX:
        return when(in->operands >= 3 && in->type != SG_T_F32 && in->mode <= SG_A_XOR &&
                        in->mode != SG_A_INC && in->mode != SG_A_DEC,
                    sg_do_lanes);
    case SG_P_ELECT:
        return when(in->operands >= 3, sg_do_lanes);
    case SG_P_WARPGROUP:
        return sg_do_warpgroup;
    case SG_P_MMA: /* the decoder knows their shapes */
    case SG_P_WGMMA:
    case SG_P_MOVMATRIX:
    case SG_P_LDMATRIX:
    case SG_P_STMATRIX:
    case SG_P_WMMA_LOAD:
    case SG_P_WMMA_STORE:
        return when(in->matrix != NULL, sg_do_lanes);
    case SG_P_ACTIVEMASK:
        return sg_do_activemask;
    case SG_P_MAPA:
        return when(in->operands >= 3, sg_do_mapa);
    case SG_P_GETCTARANK:
        return when(in->operands >= 2, sg_do_ctarank);
    default:
        return select_control(in);
    }
}

/* Reductions have no exchange. */
static bool reduces(const struct sg_insn *in)
{
    return sg_atomic_known(in) && in->mode < SG_A_EXCH;
}

/* Copies that are waited for, and what counts them. */
static sg_execute select_copy(const struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_CP_ASYNC:
        return when(copy_shape(in), sg_do_copy_async);
    case SG_P_CP_BULK:
        return when(in->operands == SG_COPY_OPERANDS, sg_do_copy_bulk);
    case SG_P_RED_BULK:
        return when(in->operands == SG_COPY_OPERANDS && reduces(in), sg_do_copy_bulk);
    case SG_P_TENSOR_REPLACE:
        return when(in->operands == SG_TF_OPERANDS, sg_do_tensor_replace);
    case SG_P_ST_ASYNC:
        return when(memory_shape(in), sg_do_counted);
    case SG_P_RED_ASYNC:
        return when(in->vector == 1 && reduces(in), sg_do_counted);
    case SG_P_TENSOR_LOAD:
    case SG_P_TENSOR_STORE:
    case SG_P_TENSOR_REDUCE:
        return when(in->operands == SG_TENSOR_OPERANDS, sg_do_tensor);
    case SG_P_MBARRIER:
        return when(in->operands == SG_BARRIER_OPERANDS, sg_do_mbarrier);
    default:
        return select_lanes(in);
    }
}

static sg_execute select_ordinary(const struct sg_insn *in)
{
    if (in->op < SG_P_UNPACK) {
        bool pair = in->type == SG_T_B128 && (in->op == SG_P_MOV || in->op == SG_P_PACK);
        return when(in->sources <= 8 && in->operands > in->sources && (in->pure || pair),
                    sg_do_pure);
    }
    switch (in->op) {
    case SG_P_UNPACK:
        return when(unpack_shape(in), sg_do_unpack);
    case SG_P_SETP:
        return when(in->operands >= (in->combine ? 5 : 4), sg_do_setp);
    case SG_P_LOP3_TEST:
        return when(in->type == SG_T_B32 && in->operands >= 7, sg_do_logic_test);
    case SG_P_ADDC:
    case SG_P_SUBC:
        return when(in->operands >= 3, sg_do_add_carry);
    case SG_P_MADC:
        return when(in->operands >= 4, sg_do_mad_carry);
    case SG_P_LD:
    case SG_P_LDU:
        return when(memory_shape(in), sg_do_load);
    case SG_P_ST:
        return when(memory_shape(in), sg_do_store);
    case SG_P_ATOM:
    case SG_P_RED:
        return when(sg_atomic_known(in) &&
                        in->operands >= (in->op == SG_P_ATOM) + 2 + (in->mode == SG_A_CAS),
                    sg_do_atomic);
    case SG_P_TEX:
    case SG_P_TLD4:
        return when(in->fetch != NULL, sg_do_texture);
    case SG_P_TXQ:
        return when(in->operands == SG_TX_OPERANDS, sg_do_query);
    case SG_P_SULD:
    case SG_P_SUST:
        return when(in->fetch != NULL, sg_do_surface);
    case SG_P_SURED:
        return when(in->fetch != NULL && sg_atomic_known(in), sg_do_surface);
    case SG_P_FENCE:
        return sg_do_fence;
    default:
        return select_copy(in);
    }
}

sg_execute sg_execute_select(const struct sg_insn *in)
{
    sg_execute ordinary = select_ordinary(in);
    sg_execute whole = ordinary ? sg_levels()[0]->execute(in) : NULL;
    return whole ? whole : ordinary;
}
