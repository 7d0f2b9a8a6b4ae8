/* Kernels that change kernel nodes of graphs: what CUDA's runtime on the device is asked for. */
#include "exec_grid.h"

#include <string.h>

#define ERROR_INVALID_VALUE 1 /* cudaError_t */

/* What a kernel may have of parameters (cuda.h). */
#define PARAMETER_BYTES_MAX 32764u

/* Updates between two breaths. */
#define BREATH 256

/* cudaGraphKernelNodeUpdate, as the runtime's headers have it. */
struct told {
    uint64_t node;
    uint32_t field, reserved;
    union {
        uint32_t grid[3];
        struct {
            uint64_t value, offset, size;
        } parameters;
        uint32_t enabled;
    };
};

/* INVALID_VALUE: there is no such node, or it cannot be so. */
static enum sg_step apply(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                          const struct told *told, int *error)
{
    const struct sg_launch *launch = w->block->run->launch;
    struct sg_update update = {.field = told->field};
    *error = ERROR_INVALID_VALUE;
    if (told->field == SG_UPDATE_GRID) {
        memcpy(update.grid, told->grid, sizeof(update.grid));
    } else if (told->field == SG_UPDATE_ENABLED) {
        update.enabled = told->enabled != 0;
    } else if (told->field == SG_UPDATE_PARAMETERS) {
        if (!told->parameters.size || told->parameters.size > PARAMETER_BYTES_MAX)
            return SG_NEXT;
        update.offset = told->parameters.offset;
        update.size = told->parameters.size;
        update.bytes = sg_reach(w, in, lane, SG_S_GENERIC, told->parameters.value,
                                (uint32_t)told->parameters.size, 1);
        if (!update.bytes)
            return SG_FAULT;
    }
    if (launch->update_node && launch->update_node(told->node, &update))
        *error = 0;
    return SG_NEXT;
}

/* The kernel says how many: others have their turn with the GPU, and it may be cancelled. */
static bool goes_on(const struct sg_warp *w, uint64_t done)
{
    const struct sg_launch *l = w->block->run->launch;
    if (done % BREATH == 0)
        sg_crew_breathe(w->block->run);
    return !l->cancel || !__atomic_load_n(l->cancel, __ATOMIC_RELAXED);
}

/* (array, how many) */
static enum sg_step apply_all(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                              int *error)
{
    uint64_t address = 0, count = 0;
    sg_builtin_argument(w, in->call, 0, lane, &address, sizeof(address));
    sg_builtin_argument(w, in->call, 1, lane, &count, sizeof(count));
    for (uint64_t i = 0; i < count && !*error && goes_on(w, i); i++) {
        const struct told *told = sg_reach(w, in, lane, SG_S_GENERIC, address + i * sizeof(*told),
                                           sizeof(*told), sizeof(uint64_t));
        if (!told)
            return SG_FAULT;
        const struct told own = *told; /* other threads may write there */
        enum sg_step step = apply(w, in, lane, &own, error);
        if (step != SG_NEXT)
            return step;
    }
    return SG_NEXT;
}

/* One field of the node that is argument 0. */
static struct told one(struct sg_warp *w, const struct sg_call *call, unsigned lane,
                       uint8_t builtin)
{
    struct told told = {.field = SG_UPDATE_PARAMETERS};
    sg_builtin_argument(w, call, 0, lane, &told.node, sizeof(told.node));
    if (builtin == SG_B_NODE_GRID) {
        told.field = SG_UPDATE_GRID;
        sg_builtin_argument(w, call, 1, lane, told.grid, sizeof(told.grid));
    } else if (builtin == SG_B_NODE_ENABLED) {
        told.field = SG_UPDATE_ENABLED;
        sg_builtin_argument(w, call, 1, lane, &told.enabled, sizeof(told.enabled));
        told.enabled &= 0xff; /* a bool */
    } else {
        sg_builtin_argument(w, call, 1, lane, &told.parameters.offset, sizeof(uint64_t));
        sg_builtin_argument(w, call, 2, lane, &told.parameters.value, sizeof(uint64_t));
        sg_builtin_argument(w, call, 3, lane, &told.parameters.size, sizeof(uint64_t));
    }
    return told;
}

enum sg_step sg_update_call(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                            uint8_t builtin)
{
    int error = 0;
    enum sg_step step;
    if (builtin == SG_B_NODE_UPDATES) {
        step = apply_all(w, in, lane, &error);
    } else {
        struct told told = one(w, in->call, lane, builtin);
        step = apply(w, in, lane, &told, &error);
    }
    if (error)
        w->last_error[lane] = (uint16_t)error;
    sg_builtin_give(w, in->call, lane, (uint64_t)error);
    return step;
}
