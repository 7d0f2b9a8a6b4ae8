/*
 * How long graphs have host functions. The graph keeps a user object for each: the driver ends that
 * when neither the graph nor anything made of it can come to the function any more. One that an
 * instantiated graph alone was given is kept here until that has let it go.
 */
#include "gpw_handlers.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "host_function_kept.h"

/* Go on to the epochs that may begin: whether all launches of this one, or before it, are over. */
static bool epoch_passed(struct gpw_host_functions *all, uint64_t epoch)
{
    while (all->epoch < epoch + 2 && all->running[(all->epoch + 1) % 2] == 0)
        all->epoch++;
    return all->epoch >= epoch + 2;
}

/* --- what an instantiated graph alone was given -------------------------------------------- */

/* It lets the function go: launches that are under way may still come to it. */
static void exec_drops(struct host_function *f)
{
    f->dropped = true;
    f->dropped_in = f->all->epoch;
}

/* All that it was given, or what one of its nodes was, unless `but` alone is left. */
static void exec_drops_of(struct gpw_session *s, uint64_t exec, uint64_t node,
                          const struct host_function *but)
{
    for (struct host_function *f = s->host_functions->list; f; f = f->next)
        if (f->exec && f->exec == exec && f != but && !f->dropped && (!node || f->node == node))
            exec_drops(f);
}

void gpw_host_functions_replaced(struct gpw_session *s, uint64_t exec)
{
    exec_drops_of(s, exec, 0, NULL);
}

/* When the last launch is over, the driver is let to say that the function is gone. */
void gpw_exec_look(struct gpw_session *s, struct host_function *f)
{
    if (!f->exec)
        return;
    if (!f->dropped && gpw_handle_birth(s, f->exec) != f->exec_birth)
        exec_drops(f);
    if (!f->dropped || !epoch_passed(f->all, f->dropped_in))
        return;
    f->exec = 0;
    s->driver->cuUserObjectRelease(f->object, 1);
}

/* --- what graphs keep -------------------------------------------------------------------------- */

/* Without an object it is never over: its address is the driver's. */
static void object_new(struct gpw_session *s, struct host_function *f)
{
    if (s->driver->cuUserObjectCreate(&f->object, f, gpw_function_gone, 1,
                                      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS)
        f->object = NULL;
}

/* Before the graph has the function: it may be over with it at any time after that. */
void gpw_function_kept(struct gpw_session *s, struct host_function *f, CUgraph graph)
{
    bool before = gpw_strict(s, false); /* the graph may be that of a capture */
    object_new(s, f);
    if (f->object && s->driver->cuGraphRetainUserObject(graph, f->object, 1,
                                                        CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS)
        f->held = 1;
    f->graph = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph);
    f->graph_birth = gpw_handle_birth(s, f->graph);
    gpw_strict(s, before);
}

/* Its own reference; clones and what was instantiated have theirs. */
static void let_go(struct gpw_session *s, struct host_function *f)
{
    uint64_t graph = f && f->held ? gpw_handle_real(s, f->graph, f->graph_birth) : 0;
    if (!graph)
        return;
    f->held = 0;
    s->driver->cuGraphReleaseUserObject((CUgraph)graph, f->object, 1);
}

/* The driver would not take the function. */
void gpw_function_never_had(struct gpw_session *s, struct host_function *f)
{
    if (f->held)
        let_go(s, f);
    else if (f->object)
        s->driver->cuUserObjectRelease(f->object, 1);
}

struct host_function *gpw_host_function_of(struct gpw_session *s, CUgraphNode node)
{
    CUDA_HOST_NODE_PARAMS told = {NULL, NULL};
    struct host_function *f = s->host_functions->in_graphs ? s->host_functions->list : NULL;
    if (!f || s->driver->cuGraphHostNodeGetParams(node, &told) != CUDA_SUCCESS)
        return NULL;
    while (f && (void *)f != told.userData)
        f = f->next;
    /* a clone's node has the same function: that reference is not its graph's to give back */
    bool own = f && f->in_graph && f->graph && f->graph == gpw_handle_graph_of(s, (uint64_t)node);
    return own ? f : NULL;
}

void gpw_host_function_left(struct gpw_session *s, struct host_function *f)
{
    let_go(s, f);
}

CUresult gpw_function_of_exec(struct gpw_session *s, CUgraph graph, CUgraphExec exec,
                              CUgraphNode node, CUhostFn fn, struct host_function *f)
{
    const CUDA_HOST_NODE_PARAMS p = {.fn = fn, .userData = f};
    object_new(s, f);
    CUresult r = s->driver->cuGraphExecHostNodeSetParams(exec, node, &p);
    if (!f->object)
        return r;
    f->exec = gpw_handle_find(s, GP_HANDLE_GRAPH_EXEC, (uint64_t)exec);
    f->exec_birth = gpw_handle_birth(s, f->exec);
    f->node = gpw_handle_name(s, (uint64_t)node, (uint64_t)graph);
    if (r != CUDA_SUCCESS)
        exec_drops(f);
    else if (f->node)
        exec_drops_of(s, f->exec, f->node, f);
    return r;
}
