/* Mnemonics: what each opcode is, and what its suffixes say. */
#include "ptx_decode.h"

/* clang-format off */
static const struct { const char *name; uint8_t op; } opcodes[] = {
    {"mov", SG_P_MOV}, {"add", SG_P_ADD}, {"sub", SG_P_SUB}, {"mul", SG_P_MUL}, {"mad", SG_P_MAD},
    {"mul24", SG_P_MUL24}, {"mad24", SG_P_MAD24}, {"fma", SG_P_FMA}, {"div", SG_P_DIV},
    {"rem", SG_P_REM}, {"abs", SG_P_ABS}, {"neg", SG_P_NEG}, {"min", SG_P_MIN}, {"max", SG_P_MAX},
    {"sad", SG_P_SAD}, {"popc", SG_P_POPC}, {"clz", SG_P_CLZ}, {"bfind", SG_P_BFIND},
    {"fns", SG_P_FNS}, {"brev", SG_P_BREV}, {"bfe", SG_P_BFE}, {"bfi", SG_P_BFI},
    {"shl", SG_P_SHL}, {"shr", SG_P_SHR}, {"shf", SG_P_SHF}, {"prmt", SG_P_PRMT},
    {"lop3", SG_P_LOP3}, {"and", SG_P_AND}, {"or", SG_P_OR}, {"xor", SG_P_XOR}, {"not", SG_P_NOT},
    {"cnot", SG_P_CNOT}, {"dp4a", SG_P_DP4A}, {"dp2a", SG_P_DP2A}, {"slct", SG_P_SLCT},
    {"bmsk", SG_P_BMSK}, {"szext", SG_P_SZEXT}, {"vabsdiff4", SG_P_VABSDIFF4},
    {"selp", SG_P_SELP}, {"set", SG_P_SET}, {"rcp", SG_P_RCP}, {"sqrt", SG_P_SQRT},
    {"rsqrt", SG_P_RSQRT}, {"sin", SG_P_SIN}, {"cos", SG_P_COS}, {"lg2", SG_P_LG2},
    {"ex2", SG_P_EX2}, {"tanh", SG_P_TANH}, {"copysign", SG_P_COPYSIGN}, {"testp", SG_P_TESTP},
    {"cvt", SG_P_CVT}, {"cvta", SG_P_CVTA}, {"isspacep", SG_P_ISSPACEP}, {"setp", SG_P_SETP},
    {"addc", SG_P_ADDC}, {"subc", SG_P_SUBC}, {"madc", SG_P_MADC}, {"ld", SG_P_LD},
    {"ldu", SG_P_LDU}, {"st", SG_P_ST}, {"atom", SG_P_ATOM}, {"red", SG_P_RED},
    {"membar", SG_P_FENCE}, {"fence", SG_P_FENCE}, {"prefetch", SG_P_FENCE},
    {"prefetchu", SG_P_FENCE}, {"nanosleep", SG_P_FENCE}, {"discard", SG_P_FENCE},
    {"applypriority", SG_P_FENCE}, {"griddepcontrol", SG_P_FENCE}, {"setmaxnreg", SG_P_FENCE},
    {"pmevent", SG_P_FENCE}, {"bra", SG_P_BRA}, {"brx", SG_P_BRX}, {"ret", SG_P_RET},
    {"exit", SG_P_EXIT}, {"trap", SG_P_TRAP}, {"brkpt", SG_P_TRAP}, {"bar", SG_P_BARRIER},
    {"barrier", SG_P_BARRIER}, {"shfl", SG_P_SHFL}, {"vote", SG_P_VOTE}, {"match", SG_P_MATCH},
    {"activemask", SG_P_ACTIVEMASK}, {"redux", SG_P_REDUX}, {"elect", SG_P_ELECT},
    {"mapa", SG_P_MAPA}, {"getctarank", SG_P_GETCTARANK}, {"cp", SG_P_CP_ASYNC}, {"mbarrier", SG_P_MBARRIER}, {"tex", SG_P_TEX},
    {"tld4", SG_P_TLD4}, {"txq", SG_P_TXQ}, {"suq", SG_P_TXQ}, {"suld", SG_P_SULD},
    {"sust", SG_P_SUST}, {"sured", SG_P_SURED}, {"createpolicy", SG_P_CREATEPOLICY},
    {"tensormap", SG_P_TENSOR_REPLACE}, {"mma", SG_P_MMA}, {"wgmma", SG_P_WGMMA}, {"wmma", SG_P_WMMA_LOAD}, {"ldmatrix", SG_P_LDMATRIX},
    {"stmatrix", SG_P_STMATRIX}, {"movmatrix", SG_P_MOVMATRIX},
};
/* clang-format on */

static bool is_float(uint8_t type)
{
    switch (type) {
    case SG_T_F16:
    case SG_T_F16X2:
    case SG_T_BF16:
    case SG_T_BF16X2:
    case SG_T_F32:
    case SG_T_F64:
        return true;
    default:
        return false;
    }
}

static void space_read(struct sg_statement *s, struct sg_insn *in)
{
    static const struct {
        const char *name;
        uint8_t space;
    } spaces[] = {{".global", SG_S_GLOBAL},      {".shared", SG_S_SHARED},
                  {".shared::cta", SG_S_SHARED}, {".shared::cluster", SG_S_SHARED},
                  {".local", SG_S_LOCAL},        {".param", SG_S_PARAM},
                  {".param::entry", SG_S_PARAM}, {".param::func", SG_S_PARAM},
                  {".const", SG_S_CONST}};
    in->space = SG_S_GENERIC;
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++)
        if (sg_suffix(s, spaces[i].name)) {
            in->space = spaces[i].space;
            return;
        }
}

static void rounding_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const plain[] = {".rn", ".rz", ".rm", ".rp", ".rna", NULL};
    static const char *const integral[] = {".rni", ".rzi", ".rmi", ".rpi", NULL};
    static const uint8_t modes[] = {SG_R_NEAREST, SG_R_ZERO, SG_R_DOWN, SG_R_UP, SG_R_AWAY};
    int i = sg_suffix_of(s, plain);
    in->rounding = i >= 0 ? modes[i] : SG_R_NEAREST;
    int k = sg_suffix_of(s, integral);
    if (k >= 0) {
        in->rounding = modes[k];
        in->mode = in->op == SG_P_CVT; /* rounds to an integer value */
    }
}

static bool compare_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const names[] = {".eq",  ".ne",  ".lt",  ".le",  ".gt",
                                        ".ge",  ".equ", ".neu", ".ltu", ".leu",
                                        ".gtu", ".geu", ".num", ".nan", NULL};
    static const char *const unsigned_names[] = {".lo", ".ls", ".hi", ".hs", NULL};
    static const uint8_t unsigned_compares[] = {SG_C_LT, SG_C_LE, SG_C_GT, SG_C_GE};
    static const char *const joins[] = {".and", ".or", ".xor", NULL};
    int i = sg_suffix_of(s, names);
    int k = i < 0 ? sg_suffix_of(s, unsigned_names) : -1;
    if (i < 0 && k < 0)
        return false;
    in->compare = i >= 0 ? (uint8_t)i : unsigned_compares[k];
    if (k >= 0) { /* on bits: without sign; `set` has the compared type second */
        uint8_t *type = in->op == SG_P_SET ? &in->type2 : &in->type;
        *type = *type == SG_T_B16 || *type == SG_T_S16   ? SG_T_U16
                : *type == SG_T_B64 || *type == SG_T_S64 ? SG_T_U64
                : *type == SG_T_B32 || *type == SG_T_S32 ? SG_T_U32
                                                         : *type;
    }
    in->combine = (uint8_t)(1 + sg_suffix_of(s, joins));
    return true;
}

bool sg_atomic_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const names[] = {".add", ".min", ".max",  ".inc", ".dec", ".and",
                                        ".or",  ".xor", ".exch", ".cas", NULL};
    int i = sg_suffix_of(s, names);
    in->mode = (uint8_t)i;
    return i >= 0;
}

/* lop3.and and lop3.or join "any bit is set" with a predicate. */
static bool logic_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const joins[] = {".and", ".or", NULL};
    in->combine = (uint8_t)(1 + sg_suffix_of(s, joins));
    if (in->combine)
        in->op = SG_P_LOP3_TEST;
    return true;
}

static uint8_t half_read(struct sg_statement *s)
{
    return sg_suffix(s, ".hi") ? SG_H_HI : sg_suffix(s, ".wide") ? SG_H_WIDE : SG_H_LO;
}

static bool barrier_read(struct sg_statement *s, struct sg_insn *in)
{
    if (sg_suffix(s, ".cluster")) {
        in->op = SG_P_BAR_CLUSTER;
        in->mode = sg_suffix(s, ".wait");
        return true;
    }
    if (sg_suffix(s, ".warp")) {
        in->op = SG_P_BAR_WARP;
        return true;
    }
    if (sg_suffix(s, ".arrive"))
        in->mode = SG_Y_ARRIVE;
    else if (sg_suffix(s, ".red"))
        in->mode = sg_suffix(s, ".popc")  ? SG_Y_RED_POPC
                   : sg_suffix(s, ".and") ? SG_Y_RED_AND
                                          : SG_Y_RED_OR;
    else
        in->mode = SG_Y_SYNC;
    return true;
}

/* What is special about a division, a root or another function of a number. */
static bool function_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const testps[] = {".finite", ".infinite",  ".number", ".notanumber",
                                         ".normal", ".subnormal", NULL};
    switch (in->op) {
    case SG_P_DIV:
        in->mode = sg_suffix(s, ".approx") ? SG_V_APPROX : sg_suffix(s, ".full") ? SG_V_FULL : 0;
        return true;
    case SG_P_RCP:
    case SG_P_SQRT:
    case SG_P_RSQRT:
    case SG_P_SIN:
    case SG_P_COS:
    case SG_P_LG2:
    case SG_P_EX2:
    case SG_P_TANH:
        in->mode = sg_suffix(s, ".approx") ? SG_V_APPROX : SG_V_EXACT;
        return true;
    case SG_P_TESTP:
        in->mode = (uint8_t)sg_suffix_of(s, testps);
        return in->mode < 6;
    default:
        return true;
    }
}

/* What is special about an opcode that moves bits or bytes. */
static bool bits_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const permutations[] = {".f4e", ".b4e",  ".rc8", ".ecl",
                                               ".ecr", ".rc16", NULL};
    switch (in->op) {
    case SG_P_BFIND:
        in->mode = sg_suffix(s, ".shiftamt");
        return true;
    case SG_P_SHF:
        in->mode = (uint8_t)(sg_suffix(s, ".r") | sg_suffix(s, ".clamp") << 1);
        return true;
    case SG_P_PRMT:
        in->mode = (uint8_t)(1 + sg_suffix_of(s, permutations));
        return true;
    case SG_P_BMSK:
    case SG_P_SZEXT:
        in->mode = sg_suffix(s, ".clamp");
        return in->mode || sg_suffix(s, ".wrap");
    case SG_P_VABSDIFF4:
        in->mode = sg_suffix(s, ".add");
        return s->type_count == 3 && s->types[1] == s->types[2];
    case SG_P_LOP3:
        return logic_read(s, in);
    case SG_P_DP2A:
        in->mode = sg_suffix(s, ".hi");
        return true;
    default:
        return function_read(s, in);
    }
}

/* What is special about an arithmetic opcode, beyond types and rounding. */
static bool arithmetic_read(struct sg_statement *s, struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_ADD:
    case SG_P_SUB:
        if (sg_suffix(s, ".cc")) {
            in->mode = 1;
            in->op = in->op == SG_P_ADD ? SG_P_ADDC : SG_P_SUBC;
        }
        return true;
    case SG_P_ADDC:
    case SG_P_SUBC:
        in->mode = 2 | sg_suffix(s, ".cc");
        return true;
    case SG_P_MAD:
        if (is_float(in->type)) {
            in->op = SG_P_FMA;
            return true;
        }
        in->mode = half_read(s);
        if (sg_suffix(s, ".cc")) {
            in->op = SG_P_MADC;
            in->mode = (uint8_t)(1 | in->mode << 2);
        }
        return true;
    case SG_P_MADC:
        in->mode = (uint8_t)(2 | sg_suffix(s, ".cc") | half_read(s) << 2);
        return true;
    case SG_P_MUL:
    case SG_P_MUL24:
    case SG_P_MAD24:
        in->mode = is_float(in->type) ? 0 : half_read(s);
        return true;
    case SG_P_MIN:
    case SG_P_MAX:
        in->mode = (uint8_t)(sg_suffix(s, ".NaN") | sg_suffix(s, ".xorsign") << 1);
        return true;
    default:
        return bits_read(s, in);
    }
}

static bool wmma_read(struct sg_statement *s, struct sg_insn *in)
{
    in->mode = sg_suffix(s, ".mma");
    in->op = in->mode ? SG_P_MMA : sg_suffix(s, ".load") ? SG_P_WMMA_LOAD : SG_P_WMMA_STORE;
    return in->op != SG_P_WMMA_STORE || sg_suffix(s, ".store");
}

/* What is special about a load, a store or an atomic operation. */
static bool access_read(struct sg_statement *s, struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_LD:
        in->polls = sg_suffix(s, ".volatile") || sg_suffix(s, ".relaxed") ||
                    sg_suffix(s, ".acquire");
        return true;
    case SG_P_ST:
        in->orders = sg_suffix(s, ".volatile") || sg_suffix(s, ".relaxed") ||
                     sg_suffix(s, ".release");
        if (sg_suffix(s, ".async"))
            in->op = SG_P_ST_ASYNC;
        return !sg_suffix(s, ".bulk");
    default:
        if (in->op == SG_P_RED && sg_suffix(s, ".async"))
            in->op = SG_P_RED_ASYNC;
        in->polls = true;
        return sg_atomic_read(s, in);
    }
}

/* What is special about any other opcode, beyond types and spaces. */
static bool details_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const shuffles[] = {".up", ".down", ".bfly", ".idx", NULL};
    static const char *const votes[] = {".all", ".any", ".uni", ".ballot", NULL};
    switch (in->op) {
    case SG_P_CVT:
        if (s->arguments == 3)
            in->op = SG_P_CVT_PACK;
        return s->type_count >= 2;
    case SG_P_CVTA:
        in->mode = sg_suffix(s, ".to");
        return true;
    case SG_P_TRAP:
        in->mode = s->opcode[0] == 'b';
        return true; /* brkpt */
    case SG_P_SETP:
    case SG_P_SET:
        return compare_read(s, in);
    case SG_P_ATOM:
    case SG_P_RED:
    case SG_P_LD:
    case SG_P_ST:
        return access_read(s, in);
    case SG_P_BARRIER:
        return barrier_read(s, in);
    case SG_P_SHFL:
        in->mode = (uint8_t)sg_suffix_of(s, shuffles);
        return in->mode < 4;
    case SG_P_VOTE:
        in->mode = (uint8_t)sg_suffix_of(s, votes);
        return in->mode < 4;
    case SG_P_MATCH:
        in->mode = sg_suffix(s, ".all");
        return true;
    case SG_P_REDUX:
    case SG_P_SURED:
        return sg_atomic_read(s, in);
    case SG_P_WMMA_LOAD:
        return wmma_read(s, in);
    case SG_P_WGMMA:
        return sg_warpgroup_read(s, in);
    case SG_P_TENSOR_REPLACE:
        return sg_tensormap_read(s, in);
    case SG_P_CP_ASYNC:
        return sg_copy_read(s, in);
    case SG_P_MBARRIER:
        return sg_mbarrier_read(s, in);
    default:
        return arithmetic_read(s, in);
    }
}

bool sg_opcode_decode(struct sg_statement *s, struct sg_insn *in)
{
    size_t i = 0, count = sizeof(opcodes) / sizeof(opcodes[0]);
    while (i < count && strcmp(opcodes[i].name, s->opcode) != 0)
        i++;
    if (i == count)
        return false;
    in->op = opcodes[i].op;
    /* cvt and set name the result first; dp4a and slct the operands in order */
    bool first = in->op == SG_P_CVT || in->op == SG_P_SET || in->op == SG_P_DP4A ||
                 in->op == SG_P_DP2A || in->op == SG_P_SLCT;
    if (s->type_count) {
        in->type = s->types[first ? 0 : s->type_count - 1];
        in->type2 = s->types[s->type_count > 1 ? (first ? 1 : 0) : 0];
    } else {
        in->type = in->op == SG_P_BRX || in->op == SG_P_BARRIER ? SG_T_B32 : SG_T_NONE;
    }
    in->ftz = sg_suffix(s, ".ftz");
    in->sat = sg_suffix(s, ".sat") || sg_suffix(s, ".satfinite");
    in->relu = sg_suffix(s, ".relu");
    space_read(s, in);
    rounding_read(s, in);
    if (in->op == SG_P_SHFL && in->type == SG_T_NONE)
        in->type = SG_T_B32;
    return details_read(s, in);
}
