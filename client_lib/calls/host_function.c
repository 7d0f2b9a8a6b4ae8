/*
 * Host functions in streams. The worker says when a stream has come to one
 * (gp_host_call) and holds the stream until it is told that it ran. They run on
 * threads of ours, one per session, which also read the channel while any is outstanding, because
 * the application may not be waiting for anything.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "call.h"
#include "captured_copy.h"
#include "export.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "managed.h"
#include "own_thread.h"
#include "session.h"

/* A stream is blocked on each: more than there are streams come from a worker that lies. */
#define OUTSTANDING_MOST (1u << 16)

struct host_function {
    uint64_t cookie;
    CUhostFn function;
    CUstreamCallback callback;
    CUstream stream;
    void *data;
    CUresult result;   /* the stream's, for a callback */
    bool in_graph;     /* runs again with every launch of its graph */
    CUhostFn let_go;   /* of the library's own: run with its data when no graph has it any more */
    bool gone;         /* due for that, and not to run */
    uint64_t launches; /* of graphs, when it was put into one */
    struct host_function *next;
};

/* Those of one session, which has a thread of its own for them: one that waits for a
 * host must not hold up the functions of another. */
struct queue {
    struct gpc_session *session;
    struct host_function *submitted; /* not yet reached by their streams */
    struct host_function *due, **due_end;
    unsigned outstanding; /* submitted, due or running */
    bool started;
};
static struct queue queues[GP_SESSIONS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all of them */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t last_cookie;

static unsigned outstanding_of(const struct queue *queue)
{
    return __atomic_load_n(&queue->outstanding, __ATOMIC_ACQUIRE);
}

/* The thread that ran one counts it without the lock. */
static void outstanding_change(struct queue *queue, int by)
{
    __atomic_fetch_add(&queue->outstanding, (unsigned)by, __ATOMIC_ACQ_REL);
}

static uint64_t launches_of(const struct gpc_session *s)
{
    return __atomic_load_n(&s->graph_launches, __ATOMIC_ACQUIRE);
}

unsigned gpc_host_functions_outstanding(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < gpc_session_count(); i++)
        n += outstanding_of(&queues[i]);
    return n;
}

bool gpc_host_functions_used(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    bool used = queues[gp_handle_session((uint64_t)ctx)].started;
    pthread_mutex_unlock(&lock);
    return used;
}

/* All under `lock`. Where one that is submitted is, or NULL is. */
static struct host_function **submitted_find(struct queue *queue, uint64_t cookie)
{
    struct host_function **at = &queue->submitted;
    while (*at && (*at)->cookie != cookie)
        at = &(*at)->next;
    return at;
}

static void due_add(struct queue *queue, struct host_function *f)
{
    f->next = NULL;
    *queue->due_end = f;
    queue->due_end = &f->next;
    pthread_cond_broadcast(&changed);
}

void gpc_on_gp_host_call(struct gpc_session *s, const struct gp_req_gp_host_call *q)
{
    struct queue *queue = &queues[s->index];
    pthread_mutex_lock(&lock);
    struct host_function **at = submitted_find(queue, q->cookie);
    struct host_function *f = *at;
    if (f && f->in_graph && f->launches == launches_of(s)) {
        f = NULL; /* a worker that lies: no graph was launched that could have it */
    } else if (f && f->in_graph) { /* stays; a copy runs */
        struct host_function *again = outstanding_of(queue) < OUTSTANDING_MOST
                                          ? malloc(sizeof *again)
                                          : NULL;
        if (again)
            *again = *f;
        f = again;
        outstanding_change(queue, again != NULL);
    } else if (f) {
        *at = f->next;
    }
    if (f) {
        f->result = gpc_result_from((int32_t)q->stream_result);
        due_add(queue, f);
    }
    pthread_mutex_unlock(&lock);
}

/* Behind what is due of it, which may use the same data. */
void gpc_on_gp_host_gone(struct gpc_session *s, const struct gp_req_gp_host_gone *q)
{
    struct queue *queue = &queues[s->index];
    pthread_mutex_lock(&lock);
    struct host_function **at = submitted_find(queue, q->cookie);
    struct host_function *f = *at;
    if (f && f->in_graph) { /* else a worker that lies */
        *at = f->next;
        f->gone = true;
        due_add(queue, f);
    }
    pthread_mutex_unlock(&lock);
}

static struct host_function *take_due(struct queue *queue)
{
    pthread_mutex_lock(&lock);
    struct host_function *f = queue->due;
    if (f) {
        queue->due = f->next;
        if (!queue->due)
            queue->due_end = &queue->due;
    }
    pthread_mutex_unlock(&lock);
    return f;
}

static void call_one(const struct gpc_route *on, struct host_function *f)
{
    gpc_thread()->host_function = true; /* it touches managed memory without waiting for itself */
    gpc_mapped_waited();
    if (f->function)
        f->function(f->data);
    else
        f->callback(f->stream, f->result, f->data);
    gpc_mapped_waited(); /* and what it has written is there before the stream goes on */
    gpc_wire_gp_host_done_on(on, f->cookie);
}

static void run(struct queue *queue, struct host_function *f)
{
    struct gpc_session *s = queue->session;
    const struct gpc_route on = gpc_route_to(s);
    if (!f->gone)
        call_one(&on, f);
    else if (f->let_go)
        f->let_go(f->data);
    if (gpc_session_works(s))
        s->transport->flush(s->channel);
    outstanding_change(queue, -1);
    free(f);
}

static void *host_thread(void *arg)
{
    struct queue *queue = arg;
    for (;;) {
        uint64_t seen = gpc_session_notices(queue->session);
        struct host_function *f = take_due(queue);
        if (f) {
            run(queue, f);
        } else if (outstanding_of(queue) && gpc_session_works(queue->session)) {
            gpc_session_wait_notice(queue->session, seen);
        } else {
            pthread_mutex_lock(&lock);
            if (!queue->due && !outstanding_of(queue))
                pthread_cond_wait(&changed, &lock);
            bool over = !gpc_session_works(queue->session);
            pthread_mutex_unlock(&lock);
            if (over)
                return NULL;
        }
    }
}

/* Under `lock`. A host function may touch managed memory, so its thread takes faults. */
static CUresult start(struct queue *queue)
{
    static const int faults[] = {SIGSEGV, 0};
    pthread_t thread;
    if (queue->started)
        return CUDA_SUCCESS;
    queue->due_end = &queue->due;
    if (gp_thread_create(&thread, "hostfn", faults, host_thread, queue) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_detach(thread);
    queue->started = true;
    return CUDA_SUCCESS;
}

/* It may be called from now on; `cookie` is its name. */
static CUresult submit(struct gpc_session *s, const struct host_function *what, uint64_t *cookie)
{
    struct host_function *f = malloc(sizeof *f);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = *what;
    struct queue *queue = &queues[s->index];
    pthread_mutex_lock(&lock);
    if (!queue->started)
        queue->session = s;
    CUresult r = start(queue);
    if (r == CUDA_SUCCESS) {
        *cookie = f->cookie = ++last_cookie;
        f->launches = launches_of(s);
        f->next = queue->submitted;
        queue->submitted = f;
        outstanding_change(queue, 1);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (r != CUDA_SUCCESS)
        free(f);
    return r;
}

/* It was sent (`r`), or nobody will call it. */
static CUresult submitted(struct gpc_session *s, uint64_t cookie, CUresult r)
{
    struct queue *queue = &queues[s->index];
    if (r == CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    struct host_function **at = submitted_find(queue, cookie);
    struct host_function *f = *at;
    if (f) {
        *at = f->next;
        outstanding_change(queue, -1);
        free(f);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static CUresult add(struct gpc_route *on, const struct host_function *what, uint32_t flags)
{
    uint64_t wire, cookie;
    CUresult r = gpc_route_stream(on, what->stream, &wire);
    if (r == CUDA_SUCCESS)
        r = submit(on->session, what, &cookie);
    return r ? r
             : submitted(on->session, cookie,
                         gpc_wire_gp_host_function_on(on, what->stream, cookie, flags));
}

CUresult gpc_host_function_node(const CUDA_HOST_NODE_PARAMS *p, CUhostFn let_go, CUgraph graph,
                                CUgraphNode *made, CUgraphExec exec, CUgraphNode node)
{
    struct gpc_session *s = gpc_session_of_handle(made ? (uint64_t)graph : (uint64_t)node);
    const struct host_function f = {
        .function = p->fn, .data = p->userData, .in_graph = true, .let_go = let_go};
    uint64_t cookie;
    if (!s)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = submit(s, &f, &cookie);
    if (r != CUDA_SUCCESS)
        return r;
    return submitted(s, cookie,
                     made ? gpc_wire_gp_node_host(made, graph, cookie)
                          : gpc_wire_gp_node_set_host(exec, node, cookie));
}

bool gpc_host_function_told(CUgraphNode node, uint64_t cookie, CUDA_HOST_NODE_PARAMS *p)
{
    pthread_mutex_lock(&lock);
    const struct host_function *f = queues[gp_handle_session((uint64_t)node)].submitted;
    while (f && !(f->in_graph && f->cookie == cookie))
        f = f->next;
    if (f)
        *p = (CUDA_HOST_NODE_PARAMS){f->function, f->data};
    pthread_mutex_unlock(&lock);
    return f != NULL;
}

CUresult gpc_graph_keeps(CUgraph graph, uint32_t count, CUhostFn gone, void *arg, uint64_t *cookie)
{
    struct gpc_session *s = gpc_session_of_handle((uint64_t)graph);
    const struct host_function f = {.function = gone, .data = arg};
    CUresult r = s ? submit(s, &f, cookie) : CUDA_ERROR_INVALID_VALUE;
    return r ? r : submitted(s, *cookie, gpc_wire_gp_graph_keeps(graph, *cookie, count));
}

CUresult gpc_host_function_capture(struct gpc_route *on, CUstream stream, CUhostFn function,
                                   CUhostFn let_go, void *arg)
{
    struct host_function f = {
        .function = function, .stream = stream, .data = arg, .in_graph = true, .let_go = let_go};
    return add(on, &f, GP_HOST_HIDDEN);
}

GPC_EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuLaunchHostFunc, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    bool in_graph;
    if ((r = gpc_stream_captures(&on, hStream, &in_graph)) != CUDA_SUCCESS)
        return r;
    struct host_function f = {
        .function = fn, .stream = hStream, .data = userData, .in_graph = in_graph};
    return gpc_leave(add(&on, &f, 0));
}

GPC_EXPORT CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                        unsigned int flags)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamAddCallback, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!callback || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(
        add(&on, &(struct host_function){.callback = callback, .stream = hStream, .data = userData},
            GP_HOST_CALLBACK));
}
