/*
 * What of the executor is compiled for several levels of processors: the loops over the lanes of
 * a warp (exec_pure_*.c, exec_whole_*.c), which a compiler turns into vector instructions. SG_LEVEL
 * is 1 (any processor), 3 (AVX2) or 4 (AVX-512); the names that these files share carry it. What
 * they compute is the same, bit for bit. exec_level.c takes the best that the processor has.
 */
#ifndef SG_EXEC_LEVEL_H
#define SG_EXEC_LEVEL_H

#include "ptx_op.h"

#ifndef SG_LEVEL
#define SG_LEVEL 1
#endif

#define SG_PASTE(name, level) name##_v##level
#define SG_EXPAND(name, level) SG_PASTE(name, level)
#define SG_LEVELLED(name) SG_EXPAND(name, SG_LEVEL)

struct sg_level {
    const char *name;
    /* As sg_pure_select. */
    sg_pure (*pure)(const struct sg_insn *in);
    /* The handler for whole warps; NULL: none, the ordinary one serves. */
    sg_execute (*execute)(const struct sg_insn *in);
    /* Runs the warp's groups of lanes, one after another, until none may go on; false: the launch
     * has failed. *ran: any of them did anything. */
    bool (*run_groups)(struct sg_warp *w, bool *ran);
};

#define sg_level_own SG_LEVELLED(sg_level)
extern const struct sg_level sg_level_v1, sg_level_v3, sg_level_v4;

/* The levels that were built and that this processor has, best first; a NULL ends them. */
const struct sg_level *const *sg_levels(void);

#endif
