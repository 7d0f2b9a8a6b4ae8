/* Which handler computes a pure instruction: by operation, then by type. */
#include "exec_pure.h"

/* Arithmetic that all kinds of numbers have. */
static sg_pure select_number(const struct sg_insn *in)
{
    switch (in->type) {
    case SG_T_F32:
        return sg_pure_select_single(in);
    case SG_T_F64:
        return sg_pure_select_double(in);
    case SG_T_F16:
    case SG_T_F16X2:
    case SG_T_BF16:
    case SG_T_BF16X2:
        return sg_pure_select_half(in);
    default:
        return sg_pure_select_integer(in);
    }
}

static sg_pure select_function(const struct sg_insn *in)
{
    if (in->mode != SG_V_EXACT)
        return sg_pure_select_approx(in);
    return in->type == SG_T_F32   ? sg_pure_select_single(in)
           : in->type == SG_T_F64 ? sg_pure_select_double(in)
                                  : NULL;
}

sg_pure sg_pure_select_any(const struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_MOV:
    case SG_P_PACK:
    case SG_P_SELP:
    case SG_P_SLCT:
    case SG_P_CVTA:
    case SG_P_ISSPACEP:
        return sg_pure_select_move(in);
    case SG_P_POPC:
    case SG_P_CLZ:
    case SG_P_BFIND:
    case SG_P_FNS:
    case SG_P_BREV:
    case SG_P_BFE:
    case SG_P_BFI:
    case SG_P_SHL:
    case SG_P_SHR:
    case SG_P_SHF:
    case SG_P_PRMT:
    case SG_P_BMSK:
    case SG_P_SZEXT:
    case SG_P_LOP3:
    case SG_P_AND:
    case SG_P_OR:
    case SG_P_XOR:
    case SG_P_NOT:
    case SG_P_CNOT:
        return sg_pure_select_bits(in);
    case SG_P_DIV:
        /* f32 and f64 only; mode tells .approx and .full from the rounded kinds */
        if (in->type == SG_T_F32 || in->type == SG_T_F64)
            return select_function(in);
        return sg_pure_select_integer(in);
    case SG_P_RCP:
    case SG_P_SQRT:
        return select_function(in);
    case SG_P_RSQRT:
    case SG_P_SIN:
    case SG_P_COS:
    case SG_P_LG2:
    case SG_P_EX2:
    case SG_P_TANH:
        return sg_pure_select_approx(in);
    case SG_P_SET:
        return sg_pure_select_set(in);
    case SG_P_SETP:
        return sg_pure_select_compare(in);
    case SG_P_CVT:
    case SG_P_CVT_PACK:
        return sg_pure_select_convert(in);
    default:
        return in->op < SG_P_UNPACK ? select_number(in) : NULL;
    }
}
