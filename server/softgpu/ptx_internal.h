/*
 * What the parser, the decoder and the executor of the soft GPU share: the
 * decoded form of a module. Nothing here is a string at run time except names
 * for messages.
 */
#ifndef SG_PTX_INTERNAL_H
#define SG_PTX_INTERNAL_H

#include "ptx.h"

#define SG_LANES 32u

/* Generic addresses: the top byte names the window. */
#define SG_WINDOW_SHIFT 56
#define SG_WINDOW(n) ((uint64_t)(n) << SG_WINDOW_SHIFT)
#define SG_WINDOW_SHARED SG_WINDOW(1)
#define SG_WINDOW_LOCAL SG_WINDOW(2)
#define SG_WINDOW_PARAM SG_WINDOW(3)
#define SG_WINDOW_CODE SG_WINDOW(4) /* function pointers: index + 1 */
#define SG_WINDOW_HEAP SG_WINDOW(5) /* device malloc */
#define SG_WINDOW_GRID SG_WINDOW(6) /* workspace of a cooperative launch */
#define SG_OFFSET_MASK (SG_WINDOW(1) - 1)

/* Inside the shared window, bits 24..31 are 0 for the block's own memory and
 * rank + 1 for that of a block of the same cluster. */
#define SG_CLUSTER_SHIFT 24

/* Limits that keep hostile text from costing more than it should. */
#define SG_MAX_SLOTS (1u << 20)         /* registers of one function */
#define SG_MAX_FRAME (1u << 20)         /* local bytes of one function */
#define SG_MAX_SHARED (232448u)         /* bytes a block may use, as on sm_90 */
#define SG_MAX_PARAMETERS (32764u)      /* packed bytes, CUDA 12.1 and later */
#define SG_MAX_INIT ((uint64_t)1 << 28) /* bytes of one initialised variable */
#define SG_MAX_LOCAL (1u << 20)         /* stack bytes of one thread */
#define SG_MAX_DEPTH 8192u              /* nested calls of one thread */

enum sg_type {
    SG_T_NONE,
    SG_T_U8,
    SG_T_S8,
    SG_T_B8,
    SG_T_U16,
    SG_T_S16,
    SG_T_B16,
    SG_T_U32,
    SG_T_S32,
    SG_T_B32,
    SG_T_U64,
    SG_T_S64,
    SG_T_B64,
    SG_T_B128,
    SG_T_F16,
    SG_T_F16X2,
    SG_T_BF16,
    SG_T_BF16X2,
    SG_T_F32,
    SG_T_F64,
    SG_T_PRED,
    SG_T_U16X2,
    SG_T_S16X2,
    SG_T_TF32,
    SG_T_E4M3X2,
    SG_T_E5M2X2,
    SG_T_COUNT,
};

enum sg_space {
    SG_S_GENERIC,
    SG_S_GLOBAL,
    SG_S_SHARED,
    SG_S_LOCAL,
    SG_S_PARAM,
    SG_S_CONST,
    SG_S_REG,
};

enum sg_rounding { SG_R_NEAREST, SG_R_ZERO, SG_R_DOWN, SG_R_UP, SG_R_AWAY /* .rna */ };

enum sg_compare {
    SG_C_EQ,
    SG_C_NE,
    SG_C_LT,
    SG_C_LE,
    SG_C_GT,
    SG_C_GE,
    SG_C_EQU,
    SG_C_NEU,
    SG_C_LTU,
    SG_C_LEU,
    SG_C_GTU,
    SG_C_GEU,
    SG_C_NUM,
    SG_C_NAN,
};

enum sg_operand_kind {
    SG_O_NONE, /* also the sink `_` */
    SG_O_REGISTER,
    SG_O_IMMEDIATE,
    SG_O_SPECIAL, /* slot: enum sg_special */
    SG_O_SHARED,  /* slot: shared variable, value: addend */
    SG_O_LOCAL,   /* value: offset in the frame, in the local space */
    SG_O_GLOBAL,  /* slot: global, value: addend; an immediate once placed */
};

struct sg_operand {
    uint8_t kind, width; /* width: bytes of the register */
    bool negated;        /* predicates: the inverse is read */
    uint32_t slot;
    uint64_t value;
};

enum sg_special {
    SG_X_TID_X,
    SG_X_TID_Y,
    SG_X_TID_Z,
    SG_X_NTID_X,
    SG_X_NTID_Y,
    SG_X_NTID_Z,
    SG_X_CTAID_X,
    SG_X_CTAID_Y,
    SG_X_CTAID_Z,
    SG_X_NCTAID_X,
    SG_X_NCTAID_Y,
    SG_X_NCTAID_Z,
    SG_X_LANEID,
    SG_X_WARPID,
    SG_X_NWARPID,
    SG_X_SMID,
    SG_X_NSMID,
    SG_X_GRIDID,
    SG_X_LANEMASK_EQ,
    SG_X_LANEMASK_LE,
    SG_X_LANEMASK_LT,
    SG_X_LANEMASK_GE,
    SG_X_LANEMASK_GT,
    SG_X_CLOCK,
    SG_X_CLOCK_HI,
    SG_X_CLOCK64,
    SG_X_GLOBALTIMER,
    SG_X_GLOBALTIMER_LO,
    SG_X_GLOBALTIMER_HI,
    SG_X_DYNAMIC_SMEM,
    SG_X_TOTAL_SMEM,
    SG_X_RESERVED_SMEM,
    SG_X_CLUSTERID_X,
    SG_X_CLUSTERID_Y,
    SG_X_CLUSTERID_Z,
    SG_X_NCLUSTERID_X,
    SG_X_NCLUSTERID_Y,
    SG_X_NCLUSTERID_Z,
    SG_X_CLUSTER_CTAID_X,
    SG_X_CLUSTER_CTAID_Y,
    SG_X_CLUSTER_CTAID_Z,
    SG_X_CLUSTER_NCTAID_X,
    SG_X_CLUSTER_NCTAID_Y,
    SG_X_CLUSTER_NCTAID_Z,
    SG_X_CLUSTER_CTARANK,
    SG_X_CLUSTER_NCTARANK,
    SG_X_IS_EXPLICIT_CLUSTER,
    SG_X_ENVREG1, /* upper and lower half of the address of a cooperative launch's workspace */
    SG_X_ENVREG2,
    SG_X_ZERO, /* other %envreg, %pm: defined, always 0 here */
};

struct sg_warp;
struct sg_insn;

/* What the scheduler does after an instruction. */
enum sg_step {
    SG_NEXT,   /* the group goes on with the next instruction */
    SG_SELECT, /* the handler has written the lanes' pc and masks: choose again */
    SG_FAULT,  /* the launch has failed; the block knows why */
};

typedef enum sg_step (*sg_execute)(struct sg_warp *w, const struct sg_insn *in, uint32_t mask);
/* Sources s[n][lane] to d[lane], for all 32 lanes, active or not. s has SG_SOURCES entries or
 * more, whatever the instruction needs; d may be one of them. */
#define SG_SOURCES 4u
typedef void (*sg_pure)(const struct sg_insn *in, const uint64_t *const *s, uint64_t *d);

struct sg_insn {
    sg_execute execute;
    sg_pure pure;         /* pure instructions; setp: its comparison */
    struct sg_operand *x; /* destinations first */
    union {
        const struct sg_call *call;
        const uint32_t *targets; /* brx.idx: count, then pcs */
        const struct sg_matrix *matrix;
        const struct sg_fetch *fetch;
    };
    int64_t offset;  /* memory: added to the address */
    uint32_t line;   /* in the PTX text */
    uint32_t target; /* bra: pc */
    uint32_t guard;  /* slot of the guard predicate, when guarded */
    bool guarded, guard_negated;
    uint8_t operands;    /* entries of x */
    uint8_t sources;     /* pure: sources after the one destination */
    uint8_t op;          /* enum sg_op */
    uint8_t type, type2; /* enum sg_type; type2: source type of cvt, setp's of set … */
    uint8_t space;       /* enum sg_space */
    uint8_t vector;      /* elements of ld and st: 1, 2, 4, 8 */
    uint8_t rounding;    /* enum sg_rounding */
    uint8_t compare;     /* enum sg_compare */
    uint8_t combine;     /* setp: 0 none, 1 and, 2 or, 3 xor */
    uint8_t mode;        /* what the op makes of it */
    bool ftz, sat, relu;
    bool polls;  /* a load or atomic that a spin loop could sit on */
    bool orders; /* a store that others may wait for */
};

/* One variable in .param, .reg (formals only) or .local space of a function. */
struct sg_formal {
    bool in_register;
    uint32_t slot;   /* in_register */
    uint32_t offset; /* else: in the frame */
    uint32_t size;   /* bytes */
};

struct sg_call {
    const struct sg_function *callee; /* NULL: through x[0] of the instruction */
    uint32_t result_count, argument_count;
    /* kind SG_O_LOCAL: a .param variable of the caller's frame, slot = size */
    struct sg_operand *results, *arguments;
};

enum sg_builtin {
    SG_B_NONE,
    SG_B_VPRINTF,
    SG_B_MALLOC,
    SG_B_FREE,
    SG_B_ASSERTFAIL,
    SG_B_SET_CONDITION,
    /* exec_updates.c */
    SG_B_NODE_PARAMETERS,
    SG_B_NODE_GRID,
    SG_B_NODE_ENABLED,
    SG_B_NODE_UPDATES,
    /* exec_children.c */
    SG_B_CHILD_BUFFER,
    SG_B_CHILD_LAUNCH,
    SG_B_OBJECT_NEW,  /* a stream or an event, by a pointer */
    SG_B_OBJECT_USE,  /* of one of them */
    SG_B_OBJECT_PAIR, /* of two */
    SG_B_RUNTIME_MALLOC,
    SG_B_RUNTIME_FREE,
    SG_B_TAKE_ERROR,
    SG_B_PEEK_ERROR
};

struct sg_shared {
    const char *name;
    uint64_t size; /* 0: dynamic */
    uint32_t align;
    bool dynamic;
};

/* Grown by sg_list_push; the items live in the module's arena or malloc. */
struct sg_index_list {
    uint32_t *items, count, capacity;
};

struct sg_function {
    struct sg_function_info info;
    struct sg_module *module;
    uint32_t index; /* among all functions of the module */
    uint32_t line;
    bool entry, external, defined, called;
    uint8_t builtin;                   /* enum sg_builtin */
    uint32_t start;                    /* pc */
    uint32_t slots;                    /* registers, 8 bytes each */
    uint32_t frame_bytes, frame_align; /* local memory; the strictest of its variables, or 0 */
    uint32_t result_count, argument_count;
    struct sg_formal *results, *arguments;
    struct sg_index_list callees, shared_used; /* functions and shared variables named here */
    bool calls_pointer;
    bool address_taken;
    uint32_t *shared_offset; /* entries only: per shared variable of the module */
};

/* An address inside an initialiser: `size` bytes at `offset` of the global. */
struct sg_relocation {
    uint64_t offset;
    int64_t addend;
    uint32_t symbol; /* global index, or function index */
    uint8_t size, shift;
    bool function;
};

struct sg_variable {
    struct sg_global global;
    bool external; /* only .extern has named it */
    struct sg_relocation *relocations;
    uint32_t relocation_count, relocation_capacity;
};

struct sg_chunk;

struct sg_pool {
    struct sg_chunk *chunks;
    uint64_t total;
};

/* Zeroed memory that lives as long as the arena; NULL when there is none. */
void *sg_pool_take(struct sg_pool *arena, size_t bytes);
void sg_pool_free(struct sg_pool *arena);

struct sg_module {
    struct sg_pool arena;
    struct sg_insn *code;
    uint32_t code_count, code_capacity;
    struct sg_function **functions; /* all: entries, device functions, builtins */
    uint32_t function_count, function_capacity;
    const struct sg_function **entries;
    uint32_t entry_count, entry_capacity;
    struct sg_variable **globals;
    uint32_t global_count, global_capacity;
    struct sg_shared **shared;
    uint32_t shared_count, shared_capacity;
    uint32_t target;      /* 75 for sm_75 */
    bool reserves_shared; /* a function of it names the part of shared memory that is CUDA's own */
    bool placed;
};

static inline uint32_t sg_type_size(unsigned type)
{
    static const uint8_t sizes[SG_T_COUNT] = {
        [SG_T_U8] = 1,    [SG_T_S8] = 1,     [SG_T_B8] = 1,    [SG_T_U16] = 2,    [SG_T_S16] = 2,
        [SG_T_B16] = 2,   [SG_T_U32] = 4,    [SG_T_S32] = 4,   [SG_T_B32] = 4,    [SG_T_U64] = 8,
        [SG_T_S64] = 8,   [SG_T_B64] = 8,    [SG_T_B128] = 16, [SG_T_F16] = 2,    [SG_T_F16X2] = 4,
        [SG_T_BF16] = 2,  [SG_T_BF16X2] = 4, [SG_T_F32] = 4,   [SG_T_F64] = 8,    [SG_T_PRED] = 1,
        [SG_T_U16X2] = 4, [SG_T_S16X2] = 4,  [SG_T_TF32] = 4,  [SG_T_E4M3X2] = 2, [SG_T_E5M2X2] = 2,
    };
    return type < SG_T_COUNT ? sizes[type] : 0;
}

#endif
