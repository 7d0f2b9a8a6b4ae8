#include "graph_edges.h"

#include <stdlib.h>

CUresult gpw_edges_new(struct gpw_edges *e, size_t count)
{
    size_t room = count ? count : 1;
    *e = (struct gpw_edges){calloc(room, sizeof *e->from), calloc(room, sizeof *e->to),
                            calloc(room, sizeof *e->data), count};
    return e->from && e->to && e->data ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void gpw_edges_free(struct gpw_edges *e)
{
    free(e->from);
    free(e->to);
    free(e->data);
}

struct edge {
    CUgraphNode from, to;
    CUgraphEdgeData data;
};

static struct edge edge_at(const struct gpw_edges *e, size_t i)
{
    return (struct edge){e->from[i], e->to[i], e->data[i]};
}

static void keep(struct gpw_edges *e, size_t *kept, const struct edge *edge)
{
    e->from[*kept] = edge->from;
    e->to[*kept] = edge->to;
    e->data[*kept] = edge->data;
    ++*kept;
}

CUresult gpw_edges_without(struct gpw_edges *e, CUgraphNode node)
{
    size_t before = 0, behind = 0, kept = 0;
    struct edge in = {0}, out = {0}; /* the last of each */
    for (size_t i = 0; i < e->count; i++) {
        const struct edge edge = edge_at(e, i);
        if (edge.to == node) {
            before++;
            in = edge;
        } else if (edge.from == node) {
            behind++;
            out = edge;
        }
    }
    if (before > 1 && behind > 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < e->count; i++) {
        struct edge edge = edge_at(e, i);
        if (edge.to == node) {
            if (behind != 1)
                continue;
            edge.to = out.to;
        } else if (edge.from == node) {
            if (before != 1 || behind == 1)
                continue;
            edge.from = in.from;
            edge.data = in.data;
        }
        keep(e, &kept, &edge);
    }
    e->count = kept;
    return CUDA_SUCCESS;
}

void gpw_edges_at(struct gpw_edges *e, CUgraphNode node, bool behind)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->count; i++) {
        struct edge edge = edge_at(e, i);
        if ((behind ? edge.from : edge.to) != node)
            continue;
        if (!behind)
            edge.to = edge.from;
        keep(e, &kept, &edge);
    }
    e->count = kept;
}
