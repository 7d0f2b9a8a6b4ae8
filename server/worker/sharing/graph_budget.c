#include "graph_budget.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "gate.h"
#include "handles.h"
#include "message_fields.h"
#include "quota.h"

/* A node and what stands around it. */
#define NODE_BYTES 1024u

struct cost {
    uint64_t bytes;
    uint64_t devices; /* a bit for each that it has work for */
};

struct gpw_graph_cost {
    struct gpw_graph_cost *next;
    uint64_t id; /* of a graph or an executable one */
    struct cost cost;
};

/* A capture that is under way, by the driver's number of it. */
struct gpw_capture_cost {
    struct gpw_capture_cost *next;
    uint64_t id;
    uint64_t stream; /* the client's, in which it began: the capture ends with it */
    struct cost cost;
};

static bool take(struct gpw_session *s, uint64_t bytes)
{
    if (gpw_budget_take(s, GPW_USE_GRAPHS, bytes))
        return true;
    gpw_session_end(s, "its graphs need more host memory than a session may have (%llu MiB)",
                    (unsigned long long)(gpw_budget_limit(s, GPW_BUDGET_HOST_MEMORY) >> 20));
    return false;
}

/* What has a place in a node is charged to the graph around all. */
static uint64_t charged(struct gpw_session *s, uint64_t id)
{
    for (uint64_t around = id; around; around = gpw_handle_graph_around(s, id))
        id = around;
    return id;
}

/* Most messages name none, and pass by the list. */
static struct gpw_graph_cost *graph_of(struct gpw_session *s, uint64_t id)
{
    struct gpw_graph_cost *g = id ? s->graph_budget.graphs : NULL;
    id = charged(s, id);
    while (g && g->id != id)
        g = g->next;
    return g;
}

/* A graph whose bytes are taken already. */
static void note(struct gpw_session *s, uint64_t id, struct cost cost)
{
    struct gpw_graph_cost *g = cost.bytes ? malloc(sizeof *g) : NULL;
    if (!g) {
        gpw_budget_give(s, GPW_USE_GRAPHS, cost.bytes);
        return;
    }
    *g = (struct gpw_graph_cost){s->graph_budget.graphs, id, cost};
    s->graph_budget.graphs = g;
}

static void forget(struct gpw_session *s, uint64_t id)
{
    struct gpw_graph_cost **at = &s->graph_budget.graphs;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct gpw_graph_cost *g = *at;
    if (!g)
        return;
    *at = g->next;
    gpw_budget_give(s, GPW_USE_GRAPHS, g->cost.bytes);
    free(g);
}

/* The id that the operation's fact says is there; 0: none is. */
#define ID(fact) gp_message_id(h, gp_op_info(h->op)->fact)

static struct cost copy_of(struct gpw_session *s, const struct gp_header *h)
{
    const struct gpw_graph_cost *g = graph_of(s, ID(graph_from_at));
    return g ? g->cost : (struct cost){0, 0};
}

/* --- captures ------------------------------------------------------------------------ */

/* The driver's number of the capture that the stream of a message is in; 0: of none. */
static uint64_t capture_id(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = ID(stream_at), real = 0;
    cuuint64_t capture = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (id == 0 || gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) != CUDA_SUCCESS ||
        s->driver->cuStreamGetCaptureInfo_v2((CUstream)real, &status, &capture, NULL, NULL, NULL) !=
            CUDA_SUCCESS)
        return 0;
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : capture;
}

static struct gpw_capture_cost *capture_of(struct gpw_session *s, uint64_t id)
{
    struct gpw_capture_cost *c = s->graph_budget.captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

static void capture_began(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = capture_id(s, h);
    struct gpw_capture_cost *c = id && !capture_of(s, id) ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return;
    *c = (struct gpw_capture_cost){
        .next = s->graph_budget.captures, .id = id, .stream = ID(stream_at)};
    s->graph_budget.captures = c;
}

static void capture_forget(struct gpw_session *s, struct gpw_capture_cost *c)
{
    struct gpw_capture_cost **at = &s->graph_budget.captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free(c);
}

static bool may_end(const struct gpw_capture_cost *c, const struct gp_header *h)
{
    return gp_op_info(h->op)->capture == GP_CAPTURE_ENDS || c->stream == ID(stream_ended_at);
}

/* A call on a stream that is being captured: a node of the graph to be. */
static bool captured(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = s->graph_budget.captures ? capture_id(s, h) : 0;
    struct gpw_capture_cost *c = id ? capture_of(s, id) : NULL;
    int ordinal = c ? gpw_current_ordinal(s) : -1;
    s->graph_budget.ending = c && may_end(c, h) ? c : NULL;
    if (!c)
        return true;
    if (ordinal >= 0)
        c->cost.devices |= UINT64_C(1) << ordinal;
    if (!take(s, NODE_BYTES + h->size))
        return false;
    c->cost.bytes += NODE_BYTES + h->size;
    return true;
}

static bool live(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id)
{
    uint64_t real;
    return gpw_handle_get(s, kind, id, false, &real) == CUDA_SUCCESS;
}

static void made(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, struct cost cost)
{
    if (live(s, kind, id))
        note(s, id, cost);
    else
        gpw_budget_give(s, GPW_USE_GRAPHS, cost.bytes);
}

static void capture_ended(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t graph = ID(graph_made_at);
    struct gpw_capture_cost *ending = s->graph_budget.ending;
    if (!ending || (!live(s, GP_HANDLE_GRAPH, graph) && capture_id(s, h) == ending->id))
        return; /* it was none, or goes on */
    made(s, GP_HANDLE_GRAPH, graph, ending->cost);
    capture_forget(s, ending);
    s->graph_budget.ending = NULL;
}

/* --- built by hand ------------------------------------------------------------------- */

static uint64_t node_bytes(const struct gp_header *h)
{
    return ID(graph_grown_at) ? NODE_BYTES + h->size : 0;
}

/* A graph has this as well, whose bytes are taken. */
static void more(struct gpw_session *s, uint64_t id, struct cost cost)
{
    struct gpw_graph_cost *g = live(s, GP_HANDLE_GRAPH, id) ? graph_of(s, id) : NULL;
    if (!g) {
        made(s, GP_HANDLE_GRAPH, charged(s, id), cost);
        return;
    }
    g->cost.bytes += cost.bytes;
    g->cost.devices |= cost.devices;
}

/* A graph has another node, whose bytes are taken; of a child it has all that the child has. One
 * that was refused costs nothing. */
static void grown(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = ID(graph_grown_at), node = ID(graph_node_at);
    struct cost cost = copy_of(s, h);
    int ordinal = gp_op_info(h->op)->in_context ? gpw_current_ordinal(s) : -1;
    cost.bytes += node_bytes(h);
    if (ordinal >= 0)
        cost.devices |= UINT64_C(1) << ordinal;
    if (!live(s, GP_HANDLE_GRAPH_NODE, node)) {
        gpw_budget_give(s, GPW_USE_GRAPHS, cost.bytes);
        return;
    }
    gpw_handle_share(s, node, cost.bytes);
    more(s, id, cost);
}

void gpw_graph_captured(struct gpw_session *s, uint64_t id)
{
    struct gpw_capture_cost *ending = s->graph_budget.ending;
    if (!ending)
        return;
    more(s, id, ending->cost);
    capture_forget(s, ending);
    s->graph_budget.ending = NULL;
}

void gpw_graph_shrinks(struct gpw_session *s, uint64_t real)
{
    uint64_t id = 0;
    uint64_t bytes = gpw_handle_share_of(s, gpw_handle_find(s, GP_HANDLE_GRAPH_NODE, real), &id);
    struct gpw_graph_cost *g = bytes ? graph_of(s, id) : NULL;
    if (!g || g->cost.bytes < bytes)
        return;
    g->cost.bytes -= bytes;
    gpw_budget_give(s, GPW_USE_GRAPHS, bytes);
}

void gpw_graph_works_here(struct gpw_session *s, uint64_t id)
{
    struct gpw_graph_cost *g = graph_of(s, id);
    int ordinal = gpw_current_ordinal(s);
    if (g && ordinal >= 0)
        g->cost.devices |= UINT64_C(1) << ordinal;
}

void gpw_graph_works_as(struct gpw_session *s, uint64_t id, uint64_t other)
{
    struct gpw_graph_cost *g = graph_of(s, id), *from = graph_of(s, other);
    if (g && from)
        g->cost.devices |= from->cost.devices;
}

/* --- launches ------------------------------------------------------------------------ */

/* Whether all its work is on the device that the launch is charged to, or on one without
 * limits. */
static bool is_charged(struct gpw_session *s, const struct gpw_graph_cost *g)
{
    int own = gpw_current_ordinal(s);
    for (int i = 0; i < (int)s->device_count; i++)
        if (g->cost.devices >> i & 1 && i != own && gpw_gate_seat(s, (uint32_t)i))
            return false;
    return true;
}

static bool may_launch(struct gpw_session *s, const struct gp_header *h)
{
    const struct gpw_graph_cost *g = graph_of(s, ID(graph_run_at));
    if (!g || is_charged(s, g))
        return true;
    gpw_log("warn", "a graph with work on several GPUs is refused: nobody could be charged for it");
    gpw_async_result(s, h, CUDA_ERROR_NOT_SUPPORTED);
    return false;
}

bool gpw_graphs_admit(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t copied = copy_of(s, h).bytes;
    uint64_t bytes = copied + node_bytes(h);
    return captured(s, h) && may_launch(s, h) && (bytes == 0 || take(s, bytes));
}

void gpw_graphs_passed(struct gpw_session *s, const struct gp_header *h)
{
    const struct gp_op_info *op = gp_op_info(h->op);
    if (op->capture == GP_CAPTURE_BEGINS)
        capture_began(s, h);
    else if (op->capture == GP_CAPTURE_ENDS || op->stream_ended_at)
        capture_ended(s, h);
    else if (op->graph_grown_at)
        grown(s, h);
    else if (op->graph_made_at)
        made(s, op->graph_made, ID(graph_made_at), copy_of(s, h));
    else if (op->graph_ended_at)
        forget(s, ID(graph_ended_at));
}
