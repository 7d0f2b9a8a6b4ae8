/*
 * Host functions. The stream has a function of ours that blocks the stream
 * (on a thread of the driver's) until the client has run its own. The loop sends
 * gp_host_call when ours has been reached.
 *
 * One that is in a graph comes again with every launch, until nothing can come to it any more
 * (host_function_kept.c): then the loop sends gp_host_gone.
 */
#include <pthread.h>
#include <stdlib.h>

#include "budget.h"
#include "gp_errors.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "graph_node.h"
#include "green.h"
#include "handles.h"
#include "host_function.h"
#include "host_function_kept.h"
#include "loop.h"

/* With what the driver keeps of it. */
#define FUNCTION_BYTES (sizeof(struct host_function) + 512)

static void function_free(struct gpw_session *s, struct host_function *f)
{
    gpw_budget_give(s, GPW_USE_WAITS, FUNCTION_BYTES);
    free(f);
}

int gpw_host_functions_open(struct gpw_session *s)
{
    struct gpw_host_functions *all = calloc(1, sizeof *all);
    if (!all)
        return -1;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    all->session = s;
    s->host_functions = all;
    return 0;
}

static void graph_over(struct gpw_session *s, void *arg, CUresult result)
{
    (void)s, (void)result;
    --*(unsigned *)arg;
}

/* A graph that nobody sees running might be blocked at a host function while the driver waits. */
CUresult gpw_cuGraphLaunch(struct gpw_session *s, CUgraphExec hGraph, CUstream hStream)
{
    CUstreamCaptureStatus capture;
    struct gpw_host_functions *all = s->host_functions;
    struct gpw_after *after;
    if (!all->in_graphs || s->driver->cuStreamIsCapturing(hStream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return s->driver->cuGraphLaunch(hGraph, hStream); /* a capture takes none */
    unsigned *running = &all->running[all->epoch % 2];
    CUresult r = gpw_after_prepare(s, hStream, graph_over, running, &after);
    if (r != CUDA_SUCCESS)
        return r;
    ++*running;
    r = gpw_after_submitted(s, after, hStream, s->driver->cuGraphLaunch(hGraph, hStream));
    *running -= r != CUDA_SUCCESS;
    return r;
}

/* Under the lock: whether a stream is, or may come to be, held up by it. Those of graphs hold nothing
 * up while no graph runs; to one that is launched a driver does not come any more after an error. */
static bool holds_up(const struct host_function *f)
{
    return f->stage != WAITING || !(f->in_graph || f->aside || f->lost);
}

bool gpw_host_functions_pending(struct gpw_session *s)
{
    struct gpw_host_functions *all = s->host_functions;
    bool pending = all->running[0] || all->running[1];
    /* only this thread adds to the list and takes from it, and it asks behind each message */
    if (!all->list)
        return pending;
    pthread_mutex_lock(&all->lock);
    for (struct host_function *f = all->list; f && !pending; f = f->next)
        pending = holds_up(f);
    pthread_mutex_unlock(&all->lock);
    return pending;
}

/* The driver says so of any event of the context's, which is current then. */
static bool has_failed(struct gpw_session *s, CUcontext context)
{
    CUevent event;
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuCtxSetCurrent(context);
    if (r == CUDA_SUCCESS)
        r = gpw_event_take(s, context, &event);
    if (r == CUDA_SUCCESS) {
        r = s->driver->cuEventQuery(event);
        gpw_event_give(s, context, event);
    }
    gpw_strict(s, before);
    return gp_error_is_sticky((int)r);
}

static void context_look(struct gpw_session *s, uint64_t id, uint64_t real, void *functions)
{
    struct gpw_host_functions *all = functions;
    CUcontext context = (CUcontext)real;
    (void)id;
    if (gpw_context_root(s, context) != context || !has_failed(s, context))
        return;
    pthread_mutex_lock(&all->lock);
    for (struct host_function *f = all->list; f; f = f->next)
        f->lost |= f->context == context && !f->always;
    pthread_mutex_unlock(&all->lock);
}

void gpw_host_functions_look(struct gpw_session *s)
{
    CUcontext before = NULL;
    if (!gpw_host_functions_pending(s))
        return;
    s->driver->cuCtxGetCurrent(&before);
    gpw_handle_each(s, GP_HANDLE_CONTEXT, context_look, s->host_functions);
    s->driver->cuCtxSetCurrent(before);
}

/* Runs on the driver's thread; no call of CUDA is allowed here. Launches of a graph may
 * overlap: then one comes after the other. */
static void reach(struct host_function *f, CUresult result)
{
    struct gpw_host_functions *all = f->all;
    pthread_mutex_lock(&all->lock);
    f->running++;
    while (f->stage != WAITING && !f->abandoned)
        pthread_cond_wait(&all->changed, &all->lock);
    f->stream_result = result;
    f->stage = REACHED;
    while (f->stage != DONE && !f->abandoned)
        pthread_cond_wait(&all->changed, &all->lock);
    f->running--;
    /* a graph keeps its address, and may come again however often it came */
    bool mine = f->abandoned && (!f->in_graph || (f->gone && !f->running));
    f->stage = f->in_graph ? WAITING : DONE;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    if (mine)
        function_free(all->session, f);
}

static void CUDA_CB on_function(void *arg)
{
    reach(arg, CUDA_SUCCESS);
}

static void CUDA_CB on_callback(CUstream stream, CUresult result, void *arg)
{
    (void)stream;
    reach(arg, result);
}

/* Nothing of the driver's comes to it any more; no call of CUDA is allowed here. */
void CUDA_CB gpw_function_gone(void *arg)
{
    struct host_function *f = arg;
    struct gpw_host_functions *all = f->all;
    pthread_mutex_lock(&all->lock);
    f->gone = true;
    bool mine = f->abandoned && !f->running;
    pthread_mutex_unlock(&all->lock);
    if (mine)
        function_free(all->session, f);
}

/* No thread of the driver's waits for the client here: it may be the one that ends a graph. */
static void CUDA_CB on_unkept(void *arg)
{
    struct host_function *f = arg;
    struct gpw_host_functions *all = f->all;
    pthread_mutex_lock(&all->lock);
    f->stage = REACHED;
    bool mine = f->abandoned;
    pthread_mutex_unlock(&all->lock);
    if (mine)
        function_free(all->session, f);
}

static void unlink_function(struct host_function *f)
{
    struct host_function **at = &f->all->list;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
}

/* --- waits ------------------------------------------------------------------------------------- */

/* Under the lock. */
static bool is_over(const struct host_function *f)
{
    return !f->running && (f->stage == DONE || (f->gone && f->stage == WAITING));
}

static bool host_ready(struct gpw_session *s, struct gpw_wait *w)
{
    struct host_function *f = (struct host_function *)w;
    struct gpw_host_functions *all = s->host_functions;
    gpw_exec_look(s, f);
    pthread_mutex_lock(&all->lock);
    bool ready = f->stage == REACHED || is_over(f);
    pthread_mutex_unlock(&all->lock);
    return ready;
}

static bool host_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct host_function *f = (struct host_function *)w;
    struct gpw_host_functions *all = s->host_functions;
    pthread_mutex_lock(&all->lock);
    bool tell = f->stage == REACHED, over = is_over(f);
    if (tell)
        f->stage = TOLD;
    if (over)
        unlink_function(f);
    pthread_mutex_unlock(&all->lock);
    if (tell)
        gpw_notify_gp_host_call(s, f->cookie, (uint32_t)f->stream_result);
    if (over && f->in_graph)
        gpw_notify_gp_host_gone(s, f->cookie);
    if (over)
        function_free(s, f);
    return over;
}

static void host_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    struct host_function *f = (struct host_function *)w;
    struct gpw_host_functions *all = s->host_functions;
    pthread_mutex_lock(&all->lock);
    unlink_function(f);
    f->abandoned = true;
    bool mine = (f->aside && f->stage != WAITING) || (f->gone && !f->running);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    if (mine)
        function_free(s, f);
    /* else by the driver's thread; one that is never reached goes with the process */
}

enum kind { ONCE, IN_GRAPH, ASIDE };

/* One that is listed; NULL when there is no room. */
static struct host_function *function_new(struct gpw_session *s, uint64_t cookie, enum kind kind)
{
    struct gpw_host_functions *all = s->host_functions;
    if (!gpw_budget_take(s, GPW_USE_WAITS, FUNCTION_BYTES))
        return NULL;
    struct host_function *f = calloc(1, sizeof *f);
    if (!f) {
        gpw_budget_give(s, GPW_USE_WAITS, FUNCTION_BYTES);
        return NULL;
    }
    f->wait = (struct gpw_wait){
        .what = "a host function", .ready = host_ready, .poll = host_poll, .cancel = host_cancel};
    f->cookie = cookie;
    f->in_graph = kind == IN_GRAPH;
    f->aside = kind == ASIDE;
    f->wait.recurs = kind != ONCE;
    f->all = all;
    all->in_graphs |= f->in_graph;
    pthread_mutex_lock(&all->lock);
    f->next = all->list;
    all->list = f;
    pthread_mutex_unlock(&all->lock);
    return f;
}

/* The driver has it now, or would not take it. */
static CUresult function_given(struct gpw_session *s, struct host_function *f, CUresult r)
{
    if (r == CUDA_SUCCESS || f->object) { /* whose end is waited for */
        gpw_wait_add(s, &f->wait);
        return r;
    }
    pthread_mutex_lock(&f->all->lock);
    unlink_function(f);
    pthread_mutex_unlock(&f->all->lock);
    function_free(s, f);
    return r;
}

/* Into the graph that a stream captures, which is asked for here: the client is not. What the
 * driver then refuses is over with that graph. */
static CUresult captured_into(struct gpw_session *s, CUstream stream, struct host_function *f)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    CUresult r = gpw_capture_of(s, stream, &state, &id, &graph);
    if (r == CUDA_SUCCESS && state == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        gpw_function_kept(s, f, graph);
    return r;
}

CUresult gpw_gp_host_function(struct gpw_session *s, CUstream stream, uint64_t cookie,
                              uint32_t flags)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = s->driver->cuStreamIsCapturing(stream, &capture);
    if (r != CUDA_SUCCESS)
        return r;
    bool captures = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    struct host_function *f = function_new(s, cookie, captures ? IN_GRAPH : ONCE);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (captures && (r = captured_into(s, stream, f)) != CUDA_SUCCESS)
        return function_given(s, f, r);
    f->always = flags & GP_HOST_CALLBACK;
    s->driver->cuCtxGetCurrent(&f->context);
    f->context = gpw_context_root(s, f->context);
    r = f->always ? s->driver->cuStreamAddCallback(stream, on_callback, f, 0)
                  : s->driver->cuLaunchHostFunc(stream, on_function, f);
    r = function_given(s, f, r);
    return r == CUDA_SUCCESS && flags & GP_HOST_HIDDEN ? gpw_graph_hide_last(s, stream) : r;
}

/* A node of a graph: one that is made, or one that has another function until now. */
static CUresult node_of_graph(struct gpw_session *s, CUgraphNode *made, CUgraph graph,
                              CUgraphNode node, struct host_function *f)
{
    const CUDA_HOST_NODE_PARAMS p = {.fn = on_function, .userData = f};
    struct host_function *before = made ? NULL : gpw_host_function_of(s, node);
    gpw_function_kept(s, f, graph);
    CUresult r = made ? s->driver->cuGraphAddHostNode(made, graph, NULL, 0, &p)
                      : s->driver->cuGraphHostNodeSetParams(node, &p);
    if (r == CUDA_SUCCESS)
        gpw_host_function_left(s, before);
    else
        gpw_function_never_had(s, f);
    return r;
}

CUresult gpw_node_host(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                       CUgraphNode node, uint64_t cookie)
{
    uint64_t of_node = (uint64_t)graph;
    CUresult r = made ? CUDA_SUCCESS
                      : gpw_handle_get(s, GP_HANDLE_GRAPH, gpw_handle_graph_of(s, (uint64_t)node),
                                       false, &of_node);
    if (r != CUDA_SUCCESS)
        return r;
    struct host_function *f = function_new(s, cookie, IN_GRAPH);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r = exec ? gpw_function_of_exec(s, (CUgraph)of_node, exec, node, on_function, f)
             : node_of_graph(s, made, (CUgraph)of_node, node, f);
    return function_given(s, f, r);
}

/* Only of what is in the list: what the driver says may be a function of its own. */
CUresult gpw_noted_gp_node_host_told(struct gpw_session *s, CUgraphNode node,
                                     CUDA_HOST_NODE_PARAMS *told)
{
    (void)node;
    const struct host_function *f = s->host_functions->list;
    while (f && (const void *)f != told->userData)
        f = f->next;
    *told = (CUDA_HOST_NODE_PARAMS){.userData = f ? (void *)(uintptr_t)f->cookie : NULL};
    return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* The driver counts who keeps the object: clones, what is instantiated, launches under way. */
CUresult gpw_gp_graph_keeps(struct gpw_session *s, CUgraph graph, uint64_t cookie, uint32_t count)
{
    if (count == 0 || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    struct host_function *f = function_new(s, cookie, ASIDE);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = s->driver->cuUserObjectCreate(&f->object, f, on_unkept, count,
                                               CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    r = function_given(s, f, r);
    if (r != CUDA_SUCCESS)
        return r;
    f->graph = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph);
    f->graph_birth = gpw_handle_birth(s, f->graph);
    r = s->driver->cuGraphRetainUserObject(graph, f->object, count, CU_GRAPH_USER_OBJECT_MOVE);
    if (r == CUDA_SUCCESS)
        f->held = count;
    else
        s->driver->cuUserObjectRelease(f->object, count); /* and the client is told that it went */
    return r;
}

/* Only while that graph is known to keep it is the driver's object sure to be there. */
CUresult gpw_gp_graph_lets_go(struct gpw_session *s, CUgraph graph, uint64_t cookie, uint32_t count)
{
    struct host_function *f = s->host_functions->list;
    uint64_t id = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph);
    while (f && !(f->aside && f->cookie == cookie))
        f = f->next;
    if (!f || f->graph != id || f->graph_birth != gpw_handle_birth(s, id) || count == 0 ||
        count > f->held)
        return CUDA_ERROR_INVALID_VALUE;
    f->held -= count;
    return s->driver->cuGraphReleaseUserObject(graph, f->object, count);
}

CUresult gpw_gp_host_done(struct gpw_session *s, uint64_t cookie)
{
    struct gpw_host_functions *all = s->host_functions;
    pthread_mutex_lock(&all->lock);
    struct host_function *f = all->list;
    while (f && f->cookie != cookie)
        f = f->next;
    bool right = f && f->stage == TOLD;
    if (right) {
        f->stage = DONE;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    if (!right)
        gpw_session_broken(s, "gp_host_done for a host function that is not running");
    return CUDA_SUCCESS;
}
