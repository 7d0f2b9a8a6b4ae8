#include "graph_budget.h"

#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"

/* A node and what stands around it. */
#define NODE_BYTES 1024u

struct graph {
    struct graph *next;
    uint64_t id; /* of a graph or an executable one */
    uint64_t bytes;
};
static struct graph *graphs;
static unsigned captures; /* under way */
static uint64_t captured; /* bytes since the first of them began */

static bool take(struct gpw_session *s, uint64_t bytes)
{
    if (gpw_budget_take(GPW_BUDGET_GRAPHS, bytes))
        return true;
    gpw_session_end(s, "its graphs need more host memory than a session may have (%llu MiB)",
                    (unsigned long long)(gpw_budget_limit() >> 20));
    return false;
}

static uint64_t bytes_of(uint64_t id)
{
    const struct graph *g = graphs;
    while (g && g->id != id)
        g = g->next;
    return g ? g->bytes : 0;
}

/* A graph whose bytes are taken already. */
static void note(uint64_t id, uint64_t bytes)
{
    struct graph *g = bytes ? malloc(sizeof *g) : NULL;
    if (!g) {
        gpw_budget_give(GPW_BUDGET_GRAPHS, bytes);
        return;
    }
    *g = (struct graph){graphs, id, bytes};
    graphs = g;
}

static void forget(uint64_t id)
{
    struct graph **at = &graphs;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct graph *g = *at;
    if (!g)
        return;
    *at = g->next;
    gpw_budget_give(GPW_BUDGET_GRAPHS, g->bytes);
    free(g);
}

static uint64_t copy_of(const struct gp_header *h)
{
    if (h->op == GP_OP_cuGraphClone && h->size >= sizeof(struct gp_req_cuGraphClone))
        return bytes_of(((const struct gp_req_cuGraphClone *)h)->originalGraph);
    if (h->op == GP_OP_cuGraphInstantiateWithFlags &&
        h->size >= sizeof(struct gp_req_cuGraphInstantiateWithFlags))
        return bytes_of(((const struct gp_req_cuGraphInstantiateWithFlags *)h)->hGraph);
    return 0;
}

bool gpw_graphs_admit(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t bytes = copy_of(h);
    if (captures && gpw_stream_at(h->op)) {
        bytes += NODE_BYTES + h->size;
        captured += NODE_BYTES + h->size;
    }
    return bytes == 0 || take(s, bytes);
}

static bool live(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id)
{
    uint64_t real;
    return gpw_handle_get(s, kind, id, false, &real) == CUDA_SUCCESS;
}

static void copied(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t bytes)
{
    if (live(s, kind, id))
        note(id, bytes);
    else
        gpw_budget_give(GPW_BUDGET_GRAPHS, bytes);
}

/* What was captured since the first of several captures began goes with the last. */
static void capture_ended(struct gpw_session *s, uint64_t id)
{
    if (captures && --captures)
        return;
    copied(s, GP_HANDLE_GRAPH, id, captured);
    captured = 0;
}

#define FIELD(name, member)                                                                        \
    (h->size >= sizeof(struct gp_req_##name) ? ((const struct gp_req_##name *)h)->member : 0)

void gpw_graphs_passed(struct gpw_session *s, const struct gp_header *h)
{
    switch (h->op) {
    case GP_OP_cuStreamBeginCapture_v2:
        captures++;
        break;
    case GP_OP_cuStreamEndCapture:
        capture_ended(s, FIELD(cuStreamEndCapture, phGraph));
        break;
    case GP_OP_cuGraphClone:
        copied(s, GP_HANDLE_GRAPH, FIELD(cuGraphClone, phGraphClone), copy_of(h));
        break;
    case GP_OP_cuGraphInstantiateWithFlags:
        copied(s, GP_HANDLE_GRAPH_EXEC, FIELD(cuGraphInstantiateWithFlags, phGraphExec),
               copy_of(h));
        break;
    case GP_OP_cuGraphDestroy:
        forget(FIELD(cuGraphDestroy, hGraph));
        break;
    case GP_OP_cuGraphExecDestroy:
        forget(FIELD(cuGraphExecDestroy, hGraphExec));
        break;
    default:
        break;
    }
}
