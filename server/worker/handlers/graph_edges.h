/* Lists of a graph's edges, with the driver's nodes. */
#ifndef GPW_GRAPH_EDGES_H
#define GPW_GRAPH_EDGES_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

struct gpw_edges {
    CUgraphNode *from, *to;
    CUgraphEdgeData *data;
    size_t count;
};

/* All of them unset; to be freed also after OUT_OF_MEMORY. */
CUresult gpw_edges_new(struct gpw_edges *e, size_t count);
void gpw_edges_free(struct gpw_edges *e);

/* Take a node out: what it waited for is waited for by what waited for it. The list does not grow:
 * NOT_SUPPORTED where there are several nodes on both sides. */
CUresult gpw_edges_without(struct gpw_edges *e, CUgraphNode node);
/* Leave `e->to` and `data` for the nodes alone that are behind a node, or before it. */
void gpw_edges_at(struct gpw_edges *e, CUgraphNode node, bool behind);

#endif
