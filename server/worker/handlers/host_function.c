/*
 * Host functions. The stream has a function of ours that blocks the stream
 * (on a thread of the driver's) until the client has run its own. The loop sends
 * gp_host_call when ours has been reached.
 */
#include <pthread.h>
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "graph_node.h"
#include "handles.h"
#include "host_function.h"

enum stage { WAITING, REACHED, TOLD, DONE };

struct host_function {
    struct gpw_wait wait;
    struct gpw_host_functions *all;
    uint64_t cookie;
    bool in_graph;    /* comes again with every launch of the graph: never over */
    bool aside;       /* no stream comes to it: the driver does when nothing keeps it any more */
    enum stage stage; /* under `lock` */
    CUresult stream_result;
    bool abandoned;   /* the loop has let go: whoever is last frees */
    unsigned running; /* threads of the driver's that are inside */
    /* What a graph keeps: the driver's object, and how often that graph alone does. */
    CUuserObject object;
    uint64_t graph, graph_birth;
    uint32_t held;
    struct host_function *next;
};

/* With what the driver keeps of it. */
#define FUNCTION_BYTES (sizeof(struct host_function) + 512)

static void function_free(struct gpw_session *s, struct host_function *f)
{
    gpw_budget_give(s, GPW_USE_WAITS, FUNCTION_BYTES);
    free(f);
}

struct gpw_host_functions {
    struct gpw_session *session; /* for its budget, on any thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct host_function *list;
    /* Some graph has a host function, and so many launches of graphs are under way. */
    bool in_graphs;
    unsigned graphs_running;
};

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
    (void)arg, (void)result;
    s->host_functions->graphs_running--;
}

/* A graph that nobody sees running might be blocked at a host function while the driver waits. */
CUresult gpw_cuGraphLaunch(struct gpw_session *s, CUgraphExec hGraph, CUstream hStream)
{
    CUstreamCaptureStatus capture;
    struct gpw_host_functions *all = s->host_functions;
    struct gpw_after *after;
    if (!all->in_graphs || s->driver->cuStreamIsCapturing(hStream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return s->driver->cuGraphLaunch(hGraph, hStream);
    CUresult r = gpw_after_prepare(s, hStream, graph_over, NULL, &after);
    if (r != CUDA_SUCCESS)
        return r;
    all->graphs_running++;
    r = gpw_after_submitted(s, after, hStream, s->driver->cuGraphLaunch(hGraph, hStream));
    all->graphs_running -= r != CUDA_SUCCESS;
    return r;
}

bool gpw_host_functions_pending(struct gpw_session *s)
{
    struct gpw_host_functions *all = s->host_functions;
    /* those of graphs stay in the list, and hold nothing up while no graph runs */
    bool pending = all->graphs_running > 0;
    pthread_mutex_lock(&all->lock);
    for (struct host_function *f = all->list; f && !pending; f = f->next)
        pending = !(f->in_graph || f->aside) || f->stage != WAITING;
    pthread_mutex_unlock(&all->lock);
    return pending;
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
    /* a graph keeps its address, and may come again however often it came */
    bool mine = f->abandoned && !f->in_graph;
    f->running--;
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

static bool host_ready(struct gpw_session *s, struct gpw_wait *w)
{
    struct host_function *f = (struct host_function *)w;
    struct gpw_host_functions *all = s->host_functions;
    pthread_mutex_lock(&all->lock);
    bool ready = f->stage == REACHED || (f->stage == DONE && !f->running);
    pthread_mutex_unlock(&all->lock);
    return ready;
}

static bool host_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct host_function *f = (struct host_function *)w;
    struct gpw_host_functions *all = s->host_functions;
    pthread_mutex_lock(&all->lock);
    bool tell = f->stage == REACHED, over = f->stage == DONE && !f->running;
    if (tell)
        f->stage = TOLD;
    if (over)
        unlink_function(f);
    pthread_mutex_unlock(&all->lock);
    if (tell)
        gpw_notify_gp_host_call(s, f->cookie, (uint32_t)f->stream_result);
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
    bool mine = f->aside && f->stage != WAITING;
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
    if (r == CUDA_SUCCESS) {
        gpw_wait_add(s, &f->wait);
        return r;
    }
    pthread_mutex_lock(&f->all->lock);
    unlink_function(f);
    pthread_mutex_unlock(&f->all->lock);
    function_free(s, f);
    return r;
}

CUresult gpw_gp_host_function(struct gpw_session *s, CUstream stream, uint64_t cookie,
                              uint32_t flags)
{
    /* what a graph keeps must never be freed, so the client is not asked */
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = s->driver->cuStreamIsCapturing(stream, &capture);
    if (r != CUDA_SUCCESS)
        return r;
    struct host_function *f = function_new(
        s, cookie, capture == CU_STREAM_CAPTURE_STATUS_NONE ? ONCE : IN_GRAPH);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r = flags & GP_HOST_CALLBACK ? s->driver->cuStreamAddCallback(stream, on_callback, f, 0)
                                 : s->driver->cuLaunchHostFunc(stream, on_function, f);
    r = function_given(s, f, r);
    return r == CUDA_SUCCESS && flags & GP_HOST_HIDDEN ? gpw_graph_hide_last(s, stream) : r;
}

CUresult gpw_node_host(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                       CUgraphNode node, uint64_t cookie)
{
    struct host_function *f = function_new(s, cookie, IN_GRAPH);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUDA_HOST_NODE_PARAMS p = {.fn = on_function, .userData = f};
    CUresult r = made   ? s->driver->cuGraphAddHostNode(made, graph, NULL, 0, &p)
                 : exec ? s->driver->cuGraphExecHostNodeSetParams(exec, node, &p)
                        : s->driver->cuGraphHostNodeSetParams(node, &p);
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
