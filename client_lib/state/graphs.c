#include "graphs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"

struct graph {
    bool known, child;
    struct gpc_node **nodes;
    size_t count, room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void gpc_graphs_lock(void)
{
    pthread_mutex_lock(&lock);
}

void gpc_graphs_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Room for one more element. */
static bool grow(void **at, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return true;
    size_t more = *room ? 2 * *room : 8;
    void *grown = realloc(*at, more * size);
    if (!grown)
        return false;
    *at = grown;
    *room = more;
    return true;
}

/* --- graphs ------------------------------------------------------------------------- */

static struct graph *graph_of(CUgraph graph)
{
    return gpc_handle_shadow(GP_HANDLE_GRAPH, (uint64_t)graph);
}

static bool attach(CUgraph id, bool known, bool child)
{
    struct graph *g = calloc(1, sizeof *g);
    if (!g)
        return false;
    g->known = known;
    g->child = child;
    gpc_handle_attach((uint64_t)id, g);
    return true;
}

bool gpc_graph_known(CUgraph graph)
{
    return attach(graph, true, false);
}

bool gpc_graph_of_node(CUgraph graph)
{
    return attach(graph, false, true);
}

bool gpc_graph_of_condition(CUgraph graph)
{
    return attach(graph, true, true);
}

bool gpc_graph_is_known(CUgraph graph)
{
    const struct graph *g = graph_of(graph);
    return g && g->known;
}

bool gpc_graph_is_child(CUgraph graph)
{
    const struct graph *g = graph_of(graph);
    return g && g->child;
}

bool gpc_graph_has_memory(CUgraph graph)
{
    const struct graph *g = graph_of(graph);
    for (size_t i = 0; g && i < g->count; i++)
        if (g->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            g->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return true;
    return false;
}

void gpc_graph_unknown(CUgraph graph)
{
    struct graph *g = graph_of(graph);
    if (g)
        g->known = false;
}

struct gpc_node *gpc_graph_node(CUgraph graph, size_t index)
{
    const struct graph *g = graph_of(graph);
    return g && index < g->count ? g->nodes[index] : NULL;
}

/* And what is a node's: its handle, and the graph that it has. */
static void node_end(struct gpc_node *node)
{
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->work.child) {
        gpc_graph_forget(node->work.child);
        gpc_handle_drop((uint64_t)node->work.child);
    }
    for (unsigned i = 0; i < node->body_count; i++) {
        gpc_graph_forget(node->bodies[i]);
        gpc_handle_drop((uint64_t)node->bodies[i]);
    }
    gpc_handle_drop((uint64_t)node->id);
    gpc_node_free(node);
}

void gpc_graph_forget(CUgraph graph)
{
    struct graph *g = graph_of(graph);
    if (!g)
        return;
    gpc_handle_attach((uint64_t)graph, NULL);
    for (size_t i = 0; i < g->count; i++)
        node_end(g->nodes[i]);
    free(g->nodes);
    free(g);
}

/* --- nodes --------------------------------------------------------------------------- */

struct gpc_node *gpc_node_of(CUgraphNode node)
{
    return gpc_handle_shadow(GP_HANDLE_GRAPH_NODE, (uint64_t)node);
}

struct gpc_node *gpc_node_new(void)
{
    return calloc(1, sizeof(struct gpc_node));
}

void gpc_node_free(struct gpc_node *node)
{
    if (!node)
        return;
    free(node->parameters);
    free(node->operations);
    free(node->access);
    free(node->bodies);
    free(node->before.at);
    free(node->behind.at);
    free(node);
}

bool gpc_node_join(struct gpc_node *node)
{
    struct graph *g = graph_of(node->graph);
    if (!g) { /* of a graph that is not known; it has a list of what was added here */
        if (!attach(node->graph, false, false))
            return false;
        g = graph_of(node->graph);
    }
    if (!grow((void **)&g->nodes, g->count, &g->room, sizeof(struct gpc_node *)))
        return false;
    g->nodes[g->count++] = node;
    gpc_handle_attach((uint64_t)node->id, node);
    return true;
}

void gpc_node_leave(struct gpc_node *node)
{
    struct graph *g = graph_of(node->graph);
    while (node->before.count)
        gpc_edge_remove(gpc_node_of(node->before.at[0].node), node, &node->before.at[0].data);
    while (node->behind.count)
        gpc_edge_remove(node, gpc_node_of(node->behind.at[0].node), &node->behind.at[0].data);
    size_t kept = 0;
    for (size_t i = 0; g && i < g->count; i++)
        if (g->nodes[i] != node)
            g->nodes[kept++] = g->nodes[i];
    if (g)
        g->count = kept;
    node_end(node);
}

/* --- edges --------------------------------------------------------------------------- */

/* Where the edge to a node is; the count if it is not there. */
static size_t find(const struct gpc_edge_list *list, CUgraphNode node, const CUgraphEdgeData *data)
{
    size_t i = 0;
    while (i < list->count &&
           (list->at[i].node != node || (data && memcmp(&list->at[i].data, data, sizeof *data))))
        i++;
    return i;
}

static void cut(struct gpc_edge_list *list, size_t at)
{
    memmove(list->at + at, list->at + at + 1, (--list->count - at) * sizeof *list->at);
}

CUresult gpc_edge_add(struct gpc_node *from, struct gpc_node *to, const CUgraphEdgeData *data)
{
    if (from == to || find(&to->before, from->id, data) < to->before.count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!grow((void **)&to->before.at, to->before.count, &to->before.room, sizeof *to->before.at) ||
        !grow((void **)&from->behind.at, from->behind.count, &from->behind.room,
              sizeof *from->behind.at))
        return CUDA_ERROR_OUT_OF_MEMORY;
    to->before.at[to->before.count++] = (struct gpc_edge){from->id, *data};
    from->behind.at[from->behind.count++] = (struct gpc_edge){to->id, *data};
    return CUDA_SUCCESS;
}

CUresult gpc_edge_remove(struct gpc_node *from, struct gpc_node *to, const CUgraphEdgeData *data)
{
    const CUgraphEdgeData own = *data; /* it may be the edge's */
    size_t i = find(&to->before, from->id, &own), k = find(&from->behind, to->id, &own);
    if (i == to->before.count || k == from->behind.count)
        return CUDA_ERROR_INVALID_VALUE;
    cut(&to->before, i);
    cut(&from->behind, k);
    return CUDA_SUCCESS;
}

CUgraphEdgeData gpc_edge_data(const struct gpc_node *from, const struct gpc_node *to)
{
    size_t i = find(&to->before, from->id, NULL);
    return i < to->before.count ? to->before.at[i].data : (CUgraphEdgeData){0};
}
