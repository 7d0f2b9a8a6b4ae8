/*
 * Memory that the driver takes by itself: for modules' variables and code when they are
 * loaded, for graphs' memory nodes, for stacks and heaps. Around every operation that may
 * make it do so, or give back (`grows` in the spec), the device's free memory is compared, and
 * where it has changed, what the process really holds is charged: by that change while there is
 * plenty, else as NVML says.
 */
#ifndef GPW_GROWTH_H
#define GPW_GROWTH_H

#include "session.h"

struct gpw_growth {
    int ordinal; /* -1: there is nothing to watch */
    uint64_t free_before;
    uint64_t over; /* bytes beyond the limit */
};

/* Before the operation `op` on the current context's device. */
void gpw_growth_begin(struct gpw_session *s, uint16_t op, struct gpw_growth *g);
/* After it: charge what it took. True: that is more than the limit, and must be undone. */
bool gpw_growth_over(struct gpw_session *s, struct gpw_growth *g);
/* So much that it cannot be code alone. */
bool gpw_growth_far(const struct gpw_growth *g);
/* It has been: charge what is left. */
void gpw_growth_undone(struct gpw_session *s, const struct gpw_growth *g);
/* A captured graph has a node that allocates: launches of graphs may take memory now. */
void gpw_growth_in_graphs(struct gpw_session *s);
/* Give back what the driver keeps for graphs of a device without need, here and on the board. */
void gpw_growth_trim_graphs(struct gpw_session *s, uint32_t ordinal);

/* Whether a kernel whose threads have `bytes` of local memory may run: the driver keeps
 * as much for every thread that the device can hold, from the first such launch on. */
bool gpw_growth_local_fits(struct gpw_session *s, uint32_t bytes);
/* It has been launched: charge what the driver took. */
void gpw_growth_local_taken(struct gpw_session *s, uint32_t bytes);

#endif
