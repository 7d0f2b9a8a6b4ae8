/*
 * The executor's state. A block runs on one thread, which may have several
 * that take turns, their warps too (exec_grid.h has the threads), and within a warp the lanes that share a program
 * counter and a frame run together as a group. Lanes of other groups wait, in
 * the order "deepest call first, then least pc", which brings them back
 * together where branches of structured code join.
 */
#ifndef SG_EXEC_INTERNAL_H
#define SG_EXEC_INTERNAL_H

#include "ptx_image.h"
#include "ptx_op.h"

#include <stdio.h>

#define SG_BARRIERS 16u                    /* that programs name */
#define SG_ALL_BARRIERS (SG_BARRIERS + 8u) /* and one of each warpgroup */
#define SG_ALL_LANES UINT32_MAX
#define SG_EXTENTS 8u
#define SG_WORKSPACE 4u
#define SG_IMAGES 4u

/* One activation of a function, shared by the lanes that entered it together. */
struct sg_frame {
    struct sg_frame *parent;
    const struct sg_function *function;
    const struct sg_insn *site; /* the call; NULL in the entry */
    uint32_t return_pc, depth;
    uint32_t lanes;  /* lanes whose innermost or outer frame this is */
    uint32_t base;   /* of the frame in each lane's local space */
    uint32_t stride; /* bytes of one lane */
    unsigned char *local;
    uint64_t *registers; /* [slot][lane] */
};

struct sg_block;
struct sg_run;

/* What a lane brought to an instruction between lanes. */
struct sg_deposit {
    uint64_t value; /* shfl's a, vote's predicate … */
    uint32_t b, c, members;
    const struct sg_insn *in;
};

struct sg_warp {
    struct sg_block *block;
    uint32_t index;
    uint32_t live;     /* lanes that have not exited */
    uint32_t barrier;  /* of these, waiting at a barrier of the block */
    uint32_t sync;     /* waiting for other lanes of the warp */
    uint32_t cluster;  /* waiting at the cluster's barrier */
    uint32_t deferred; /* spinning: others go first */

    /* The group that runs. */
    uint32_t pc, active, merge_pc;
    struct sg_frame *frame;
    uint64_t *registers; /* the frame's */
    uint32_t fuel;       /* backward jumps until others may go */
    uint32_t polls;      /* polling instructions until the group is deferred */
    bool yield;          /* the warp's turn is over */
    bool ran;            /* anything in its last turn */

    uint32_t lane_pc[SG_LANES];
    struct sg_frame *lane_frame[SG_LANES];
    struct sg_deposit deposit[SG_LANES];
    uint8_t lane_barrier[SG_LANES];
    uint32_t carry;                      /* CC.CF of each lane */
    uint32_t arrived[SG_ALL_BARRIERS];   /* lanes counted in the present phase */
    uint32_t predicate[SG_ALL_BARRIERS]; /* what they brought to a reduction */
    struct sg_frame *spare;              /* the frame freed last, often the next one wanted */
    size_t spare_bytes;
    uint32_t cluster_arrived;
    uint16_t last_error[SG_LANES]; /* cudaError_t of what they called */
};

struct sg_barrier_state {
    uint32_t expected; /* threads; 0: all that live */
    bool used;         /* someone has come since it last let go */
    bool reduces;      /* and some want to know of predicates */
};

struct sg_block {
    struct sg_run *run;
    uint32_t id[3];
    uint64_t linear; /* in the grid */
    uint32_t warp_count, live_warps;
    struct sg_warp *warps;
    unsigned char *shared;
    struct sg_barrier_state barriers[SG_ALL_BARRIERS];
    struct sg_block *next; /* resident blocks, oldest first */
    struct sg_cluster *cluster;
    uint32_t rank; /* in the cluster */
    bool progressed;
};

struct sg_cluster {
    uint64_t number; /* in the grid */
    uint32_t size;
    bool used;
    struct sg_block *blocks[16];
};

struct sg_grid;

struct sg_extent {
    uint64_t begin, end;
    unsigned char *host; /* of begin */
};

/* What was told of an object, kept until others take its place. */
struct sg_known_image {
    uint64_t object;
    bool surface, known;
    struct sg_image image;
};

/* A launch as one of its threads has it. */
struct sg_run {
    struct sg_grid *grid;
    const struct sg_launch *launch;
    const struct sg_function *function;
    const struct sg_module *module;
    unsigned char *parameters;
    uint32_t shared_bytes, threads, warps;
    uint32_t shared_top;      /* where dynamic shared memory begins */
    uint32_t shared_reserved; /* and behind all, in modules that name it, CUDA's own part */
    uint32_t cluster_dim[3], cluster_size;
    uint64_t grid_id;
    struct sg_extent extents[SG_EXTENTS];
    uint32_t next_extent;
    struct sg_known_image images[SG_IMAGES];
    uint32_t next_image;
    bool leads;            /* the thread that launches */
    uint64_t oldest;       /* cluster of this thread's */
    uint64_t instructions; /* lanes' */
    struct sg_run *next_run;
    struct sg_cluster *spare; /* one that has ended, often the next one wanted */
};

/* --- frames (exec_frame.c) ------------------------------------------------ */

/* A frame for `lanes` of the function, called from `parent` (NULL: an entry);
 * zeroed. NULL with *why set: HARDWARE_STACK_ERROR or OUT_OF_MEMORY. */
struct sg_frame *sg_frame_enter(struct sg_warp *w, const struct sg_function *function,
                                struct sg_frame *parent, uint32_t lanes, CUresult *why);
/* The lanes leave the frame, and it goes with the last of them. */
void sg_frame_leave(struct sg_warp *w, struct sg_frame *frame, uint32_t lanes);
/* The frame that the warp keeps goes. */
void sg_frame_discard(struct sg_warp *w);
/* The lanes leave this and every outer frame. */
void sg_frame_unwind(struct sg_warp *w, uint32_t lane);

/* --- faults (exec_fault.c) ------------------------------------------------- */

/* Ends the launch; the first fault counts. Always SG_FAULT. lane < 32. */
enum sg_step sg_fault(struct sg_warp *w, const struct sg_insn *in, unsigned lane, CUresult result,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));

/* --- scheduling (exec_warp.c, exec_barrier.c) ------------------------------- */

/* Runs the warp for one turn. false: the launch has failed. */
bool sg_warp_turn(struct sg_warp *w);
/* Writes the group's pc to its lanes: `taken` to pc `target`, the rest goes on. */
void sg_warp_split(struct sg_warp *w, uint32_t taken, uint32_t target);
/* The lanes exit. */
void sg_warp_exit(struct sg_warp *w, uint32_t lanes);
/* A jump backwards, or a call: counts towards the end of the turn. */
bool sg_warp_tired(struct sg_warp *w);
/* Lets go whoever waits at a barrier that is now complete; true if anyone. */
bool sg_barrier_release(struct sg_block *block);
bool sg_cluster_release(struct sg_cluster *cluster);
/* Whether the warp has its three neighbours; false: the launch has failed. */
bool sg_warpgroup_whole(struct sg_warp *w, const struct sg_insn *in, unsigned lane);
/* Performs exchanges all of whose members have come; false: the launch has failed. */
bool sg_lanes_release(struct sg_warp *w);

/* All of these lanes are in the frame. */
static inline bool sg_same_frame(const struct sg_warp *w, uint32_t ready,
                                 const struct sg_frame *frame)
{
    uintptr_t differs = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        differs |= ready >> l & 1 ? (uintptr_t)w->lane_frame[l] ^ (uintptr_t)frame : 0;
    return differs == 0;
}

static inline uint32_t sg_warp_ready(const struct sg_warp *w)
{
    return w->live & ~(w->barrier | w->sync | w->cluster);
}

/* --- operands (exec_step.c, exec_special.c) -------------------------------- */

/* The operand for all lanes of the group; `room` may be used to hold it. */
const uint64_t *sg_operand_all(struct sg_warp *w, const struct sg_operand *x, uint64_t *room);
void sg_special_all(struct sg_warp *w, uint32_t special, uint64_t *out);
/* The one value, for a lane of the group. */
uint64_t sg_operand_lane(struct sg_warp *w, const struct sg_operand *x, unsigned lane);

static inline uint64_t *sg_register(struct sg_warp *w, const struct sg_operand *x)
{
    return w->registers + (size_t)x->slot * SG_LANES;
}

/* Writes a result unless the operand is the sink; kept to the register's width. */
static inline void sg_write(struct sg_frame *frame, const struct sg_operand *x, unsigned lane,
                            uint64_t value)
{
    if (x->kind == SG_O_REGISTER)
        frame->registers[(size_t)x->slot * SG_LANES + lane] = value;
}

#define SG_FOR_LANES(lane, mask)                                                                   \
    for (uint32_t lane##_left = (mask), lane = 0;                                                  \
         lane##_left && (lane = (uint32_t)__builtin_ctz(lane##_left), true);                       \
         lane##_left &= lane##_left - 1)

/* --- memory (exec_memory.c, exec_heap.c) ------------------------------------ */

/* Host memory of an access by one lane, checked; NULL: the launch has failed. */
void *sg_reach(struct sg_warp *w, const struct sg_insn *in, unsigned lane, unsigned space,
               uint64_t address, uint32_t size, uint32_t align);
/* The same without a fault or a check of alignment. */
void *sg_look(struct sg_warp *w, unsigned lane, unsigned space, uint64_t address, uint32_t size);
/* A .param variable of a device function lies in its frame. */
static inline unsigned sg_space_of(const struct sg_insn *in, const struct sg_operand *x)
{
    return x->kind == SG_O_LOCAL && in->space == SG_S_PARAM ? SG_S_LOCAL : in->space;
}
/* Address of memory operand x of an instruction that has several, each with its own offset. */
static inline uint64_t sg_address_own(const struct sg_operand *x, uint64_t base)
{
    uint64_t sum = x->kind == SG_O_REGISTER ? base + x->value : base;
    return x->kind == SG_O_REGISTER && x->width == 4 ? (uint32_t)sum : sum;
}
/* Address of memory operand x plus the instruction's offset. */
static inline uint64_t sg_address(const struct sg_operand *x, uint64_t base, int64_t offset)
{
    uint64_t sum = base + (uint64_t)offset;
    return x->kind == SG_O_REGISTER && x->width == 4 ? (uint32_t)sum : sum;
}

/* Device malloc: one heap per process, as large as CUDA's default. */
uint64_t sg_heap_take(uint64_t size); /* generic address; 0: no room */
bool sg_heap_give(uint64_t address);  /* false: not from sg_heap_take */
void *sg_heap_look(uint64_t address, uint64_t size);

/* --- builtins (exec_print.c, exec_builtin.c) --------------------------------- */

enum sg_step sg_builtin_call(struct sg_warp *w, const struct sg_insn *in, uint32_t mask,
                             const struct sg_function *callee);
/* Argument i of a lane, of at most so many bytes; false: there is none, or a smaller one. */
bool sg_builtin_argument(struct sg_warp *w, const struct sg_call *call, uint32_t i, unsigned lane,
                         void *out, uint32_t bytes);
/* What the call returns to a lane. */
void sg_builtin_give(struct sg_warp *w, const struct sg_call *call, unsigned lane, uint64_t value);
/* One of those from SG_B_NODE_PARAMETERS on (exec_updates.c). */
enum sg_step sg_update_call(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                            uint8_t builtin);
/* One of those from SG_B_CHILD_BUFFER on (exec_children.c). */
enum sg_step sg_runtime_call(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                             uint8_t builtin);
/* The function that a pointer of the module's code means, or NULL. */
const struct sg_function *sg_function_pointed(const struct sg_module *m, uint64_t pointer);
/* Formats as device printf does and sends the text on; the int it returns. */
int sg_print(struct sg_warp *w, unsigned lane, uint64_t format, uint64_t arguments);

/* --- handlers ---------------------------------------------------------------- */

#define SG_HANDLER(name)                                                                           \
    enum sg_step name(struct sg_warp *w, const struct sg_insn *in, uint32_t mask)
SG_HANDLER(sg_do_pure);
SG_HANDLER(sg_do_unpack);
SG_HANDLER(sg_do_setp);
SG_HANDLER(sg_do_logic_test);
SG_HANDLER(sg_do_add_carry);
SG_HANDLER(sg_do_mad_carry);
SG_HANDLER(sg_do_load);
SG_HANDLER(sg_do_store);
SG_HANDLER(sg_do_copy_async);
SG_HANDLER(sg_do_copy_bulk);
SG_HANDLER(sg_do_mbarrier);
SG_HANDLER(sg_do_tensor);
SG_HANDLER(sg_do_tensor_replace);
SG_HANDLER(sg_do_counted);
SG_HANDLER(sg_do_texture);
SG_HANDLER(sg_do_query);
SG_HANDLER(sg_do_surface);
SG_HANDLER(sg_do_atomic);
SG_HANDLER(sg_do_fence);
SG_HANDLER(sg_do_branch);
SG_HANDLER(sg_do_branch_index);
SG_HANDLER(sg_do_call);
SG_HANDLER(sg_do_ret);
SG_HANDLER(sg_do_exit);
SG_HANDLER(sg_do_trap);
SG_HANDLER(sg_do_barrier);
SG_HANDLER(sg_do_warpgroup);
SG_HANDLER(sg_do_cluster_barrier);
SG_HANDLER(sg_do_lanes);
SG_HANDLER(sg_do_activemask);
SG_HANDLER(sg_do_mapa);
SG_HANDLER(sg_do_ctarank);

/* So many bytes have come: a barrier of shared memory counts them. false: the launch has failed. */
bool sg_mbarrier_complete(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                          uint64_t address, uint64_t bytes);
/* The address at the same place of the shared memory of a block of the cluster. */
uint64_t sg_shared_of(uint64_t address, unsigned rank);
/* Does the instruction's atomic operation on each element of its type. */
void sg_reduce_bytes(const struct sg_insn *in, unsigned char *to, const unsigned char *from,
                     uint32_t bytes);

/* Does the atomic operation on memory of the type's size, at most 8 bytes; what was there. */
uint64_t sg_atomic_update(const struct sg_insn *in, bool global, void *memory, uint64_t b,
                          uint64_t c);
/* Whether the atomic operation exists for the type. */
bool sg_atomic_known(const struct sg_insn *in);

#endif
