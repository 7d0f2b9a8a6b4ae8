/*
 * Nodes and edges of graphs. Of a graph that was built by hand all is known here; of others the
 * worker is asked. Lists are given in CUDA's way: without room, the count; with room, as many
 * as fit, the rest set to null, and the count of those filled.
 */
#include <stdlib.h>
#include <string.h>

#include "gpc_wire.h"
#include "handle.h"
#include "shared.h"

/* What a list is given in; `second` and `data` may be missing. */
struct list {
    CUgraphNode *first, *second;
    CUgraphEdgeData *data;
    size_t room, count;
    bool lossy; /* an edge has data that nobody asked for */
};

static void put(struct list *list, CUgraphNode first, CUgraphNode second,
                const CUgraphEdgeData *data)
{
    const CUgraphEdgeData none = {0};
    size_t i = list->count++;
    if (i >= list->room)
        return;
    list->first[i] = first;
    if (list->second)
        list->second[i] = second;
    if (list->data)
        list->data[i] = *data;
    else if (memcmp(data, &none, sizeof none) != 0)
        list->lossy = true;
}

static CUresult end(const struct list *list, size_t *count)
{
    size_t filled = list->count < list->room ? list->count : list->room;
    if (list->lossy)
        return CUDA_ERROR_LOSSY_QUERY;
    for (size_t i = filled; list->first && i < list->room; i++) {
        list->first[i] = NULL;
        if (list->second)
            list->second[i] = NULL;
    }
    *count = list->first ? filled : list->count;
    return CUDA_SUCCESS;
}

/* --- of the worker's ------------------------------------------------------------------- */

/* Columns of an answer, at most GP_NODES_MAX rows. */
struct rows {
    uint64_t *column[3];
    uint32_t capacity, got[3];
};

static bool rows_new(struct rows *rows, size_t room)
{
    rows->capacity = room > GP_NODES_MAX ? GP_NODES_MAX : (uint32_t)room;
    uint64_t *at = calloc(3 * (size_t)rows->capacity + 1, sizeof *at);
    for (unsigned i = 0; i < 3; i++) {
        rows->column[i] = at ? at + i * (size_t)rows->capacity : NULL;
        rows->got[i] = 0;
    }
    return at != NULL;
}

/* Into the list; those that were only counted, too. No graph has as many as would make a program
 * that asks for room, as it is told to, ask for more than there can be. */
static CUresult rows_put(const struct rows *rows, struct list *list, uint64_t total)
{
    if (total > UINT32_MAX)
        return CUDA_ERROR_UNKNOWN;
    size_t n = rows->got[0] / sizeof(uint64_t);
    for (size_t i = 0; i < n; i++) {
        CUgraphEdgeData data;
        memcpy(&data, &rows->column[2][i], sizeof data);
        put(list, (CUgraphNode)rows->column[0][i], (CUgraphNode)rows->column[1][i], &data);
    }
    if (!list->first)
        list->count = total;
    return CUDA_SUCCESS;
}

/* --- nodes ------------------------------------------------------------------------------ */

static CUresult ask_nodes(CUgraph graph, bool roots, struct list *list)
{
    struct rows rows;
    uint64_t total = 0;
    if (!rows_new(&rows, list->room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_gp_graph_nodes(graph, roots, rows.capacity, &total, rows.column[0],
                                         &rows.got[0]);
    if (r == CUDA_SUCCESS)
        r = rows_put(&rows, list, total);
    free(rows.column[0]);
    return r;
}

CUresult gpc_graph_list(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count)
{
    const CUgraphEdgeData none = {0};
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.first = nodes, .room = nodes ? *count : 0};
    gpc_graphs_lock();
    bool known = gpc_graph_is_known(graph);
    const struct gpc_node *node;
    for (size_t i = 0; known && (node = gpc_graph_node(graph, i)); i++)
        if (!roots || !node->before.count)
            put(&list, node->id, NULL, &none);
    gpc_graphs_unlock();
    CUresult r = known ? CUDA_SUCCESS : ask_nodes(graph, roots, &list);
    return r ? r : end(&list, count);
}

/* --- edges -------------------------------------------------------------------------------- */

static CUresult ask_edges(CUgraph graph, struct list *list)
{
    struct rows rows;
    uint64_t total = 0;
    if (!rows_new(&rows, list->room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_gp_graph_edges(graph, rows.capacity, &total, rows.column[0],
                                         rows.column[1], rows.column[2], &rows.got[0], &rows.got[1],
                                         &rows.got[2]);
    if (r == CUDA_SUCCESS)
        r = rows_put(&rows, list, total);
    free(rows.column[0]);
    return r;
}

CUresult gpc_graph_edges(CUgraph graph, const struct gpc_edges *to, size_t *count)
{
    if (!count || !to->from != !to->to)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {to->from, to->to, to->data, to->from ? *count : 0, 0, false};
    gpc_graphs_lock();
    bool known = gpc_graph_is_known(graph);
    const struct gpc_node *node;
    for (size_t i = 0; known && (node = gpc_graph_node(graph, i)); i++)
        for (size_t k = 0; k < node->before.count; k++)
            put(&list, node->before.at[k].node, node->id, &node->before.at[k].data);
    gpc_graphs_unlock();
    CUresult r = known ? CUDA_SUCCESS : ask_edges(graph, &list);
    return r ? r : end(&list, count);
}

static CUresult ask_neighbours(CUgraphNode node, bool behind, struct list *list)
{
    struct rows rows;
    uint64_t total = 0;
    if (!rows_new(&rows, list->room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_gp_node_edges(node, behind, rows.capacity, &total, rows.column[0],
                                        rows.column[2], &rows.got[0], &rows.got[2]);
    if (r == CUDA_SUCCESS)
        rows_put(&rows, list, total);
    free(rows.column[0]);
    return r;
}

CUresult gpc_node_edges(CUgraphNode id, bool behind, CUgraphNode *nodes, CUgraphEdgeData *data,
                        size_t *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.first = nodes, .data = data, .room = nodes ? *count : 0};
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(id);
    bool known = node && gpc_graph_is_known(node->graph);
    if (known) {
        const struct gpc_edge_list *edges = behind ? &node->behind : &node->before;
        for (size_t i = 0; i < edges->count; i++)
            put(&list, edges->at[i].node, NULL, &edges->at[i].data);
    }
    gpc_graphs_unlock();
    CUresult r = known ? CUDA_SUCCESS : ask_neighbours(id, behind, &list);
    return r ? r : end(&list, count);
}

/* --- changed ------------------------------------------------------------------------------ */

/* CUDA's rules for the data of an edge: only a kernel has ports. */
static bool is_data(const CUgraphEdgeData *d, const struct gpc_node *from)
{
    static const unsigned char none[sizeof d->reserved];
    bool kernel = !from || from->type == CU_GRAPH_NODE_TYPE_KERNEL;
    return d->type <= CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && d->to_port == 0 &&
           d->from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER &&
           memcmp(d->reserved, none, sizeof none) == 0 && (kernel || (!d->from_port && !d->type));
}

/* An edge of a graph, as it is known here: made or gone. */
static CUresult change(CUgraph graph, CUgraphNode from_id, CUgraphNode to_id,
                       const CUgraphEdgeData *data, bool remove)
{
    struct gpc_node *from = gpc_node_of(from_id), *to = gpc_node_of(to_id);
    bool known = gpc_graph_is_known(graph);
    if (from_id == to_id || !is_data(data, from) ||
        !gpc_handle_live(GP_HANDLE_GRAPH_NODE, (uint64_t)from_id) ||
        !gpc_handle_live(GP_HANDLE_GRAPH_NODE, (uint64_t)to_id))
        return CUDA_ERROR_INVALID_VALUE;
    if (!known)
        return CUDA_SUCCESS;
    if (!from || !to || from->graph != graph || to->graph != graph)
        return CUDA_ERROR_INVALID_VALUE;
    return remove ? gpc_edge_remove(from, to, data) : gpc_edge_add(from, to, data);
}

/* To remove an edge nobody has to say its data. */
static CUgraphEdgeData data_of(CUgraphNode from_id, CUgraphNode to_id, const CUgraphEdgeData *given,
                               bool remove)
{
    const struct gpc_node *from = gpc_node_of(from_id), *to = gpc_node_of(to_id);
    if (given)
        return *given;
    return remove && from && to ? gpc_edge_data(from, to) : (CUgraphEdgeData){0};
}

/* At most GP_NODES_MAX edges: all of them or none. */
static CUresult link_some(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                          const CUgraphEdgeData *data, size_t count, bool remove)
{
    struct rows rows;
    if (!rows_new(&rows, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    size_t done = 0;
    gpc_graphs_lock();
    for (; r == CUDA_SUCCESS && done < count; done++) {
        const CUgraphEdgeData one = data_of(from[done], to[done], data ? &data[done] : NULL,
                                            remove);
        rows.column[0][done] = (uint64_t)from[done];
        rows.column[1][done] = (uint64_t)to[done];
        memcpy(&rows.column[2][done], &one, sizeof one);
        r = change(graph, from[done], to[done], &one, remove);
    }
    for (size_t i = 0; r != CUDA_SUCCESS && i + 1 < done; i++) {
        CUgraphEdgeData one;
        memcpy(&one, &rows.column[2][i], sizeof one);
        change(graph, from[i], to[i], &one, !remove);
    }
    gpc_graphs_unlock();
    if (r == CUDA_SUCCESS)
        r = remove ? gpc_wire_gp_graph_unlink(graph, (uint32_t)count, rows.column[0],
                                              rows.column[1], rows.column[2])
                   : gpc_wire_gp_graph_link(graph, (uint32_t)count, rows.column[0], rows.column[1],
                                            rows.column[2]);
    free(rows.column[0]);
    return r;
}

CUresult gpc_graph_link(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                        const CUgraphEdgeData *data, size_t count, bool remove)
{
    if (!gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)graph) || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    gpc_graphs_lock();
    CUresult r = remove && gpc_graph_has_memory(graph) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    gpc_graphs_unlock();
    for (size_t at = 0; r == CUDA_SUCCESS && at < count; at += GP_NODES_MAX) {
        size_t some = count - at < GP_NODES_MAX ? count - at : GP_NODES_MAX;
        r = link_some(graph, from + at, to + at, data ? data + at : NULL, some, remove);
    }
    return r;
}
