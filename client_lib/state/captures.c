#include "captures.h"

#include <pthread.h>
#include <stdlib.h>

#include "handle.h"
#include "session.h"

struct capture {
    uint64_t stream;
    uint64_t thread; /* its number */
    CUstreamCaptureMode mode;
    CUgraph graph; /* that it was begun to, and its number then */
    uint64_t id;
    struct capture *next;
};
/* A graph that the application was told of while its capture is under way, by that one's number on
 * the graph's host. */
struct told {
    uint64_t id;
    CUgraph graph;
    struct told *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static struct told *told;
static int active;        /* how many of them, and of those that are just being begun */
static uint64_t sent_for; /* how many have ever been begun, or tried to */

bool gpc_capture_active(void)
{
    return __atomic_load_n(&active, __ATOMIC_ACQUIRE) > 0;
}

uint64_t gpc_captures_sent_for(void)
{
    return __atomic_load_n(&sent_for, __ATOMIC_ACQUIRE);
}

/* In this order: who finds the count that includes it finds it active, too, or over. */
void gpc_captures_begin(void)
{
    __atomic_fetch_add(&active, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&sent_for, 1, __ATOMIC_RELEASE);
}

void gpc_captures_begin_not(void)
{
    __atomic_fetch_sub(&active, 1, __ATOMIC_RELEASE);
}

/* Under `lock`. */
static void drop(struct capture **at)
{
    struct capture *c = *at;
    *at = c->next;
    free(c);
    __atomic_fetch_sub(&active, 1, __ATOMIC_RELEASE);
}

/* Under `lock`: captures of streams that are gone went with them. */
static void forget_dead(void)
{
    for (struct capture **at = &captures; *at;)
        if (gpc_handle_live(GP_HANDLE_STREAM, (*at)->stream))
            at = &(*at)->next;
        else
            drop(at);
}

CUresult gpc_captures_begun(uint64_t stream, CUstreamCaptureMode mode)
{
    return gpc_captures_begun_to(stream, mode, NULL, 0);
}

CUresult gpc_captures_begun_to(uint64_t stream, CUstreamCaptureMode mode, CUgraph graph,
                               uint64_t id)
{
    struct capture *c = malloc(sizeof *c);
    if (!c) {
        gpc_captures_begin_not();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    forget_dead();
    *c = (struct capture){stream, gpc_thread()->number, mode, graph, id, captures};
    captures = c;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void gpc_captures_ended(uint64_t stream)
{
    pthread_mutex_lock(&lock);
    struct capture **at = &captures;
    while (*at && (*at)->stream != stream)
        at = &(*at)->next;
    if (*at)
        drop(at);
    pthread_mutex_unlock(&lock);
}

CUgraph gpc_captures_graph(uint64_t stream)
{
    CUgraph graph = NULL;
    pthread_mutex_lock(&lock);
    for (const struct capture *c = captures; c && !graph; c = c->next)
        if (c->stream == stream)
            graph = c->graph;
    pthread_mutex_unlock(&lock);
    return graph;
}

/* Under `lock`. */
static CUgraph graph_of(uint64_t id, uint32_t session)
{
    for (const struct capture *c = captures; c; c = c->next)
        if (c->graph && c->id == id && gp_handle_session((uint64_t)c->graph) == session)
            return c->graph;
    for (const struct told *t = told; t; t = t->next)
        if (t->id == id && gp_handle_session((uint64_t)t->graph) == session &&
            gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)t->graph))
            return t->graph;
    return NULL;
}

CUgraph gpc_captures_graph_of(uint64_t id, uint32_t session)
{
    pthread_mutex_lock(&lock);
    CUgraph graph = graph_of(id, session);
    pthread_mutex_unlock(&lock);
    return graph;
}

CUgraph gpc_captures_hand(uint64_t id, CUgraph named)
{
    pthread_mutex_lock(&lock);
    CUgraph graph = graph_of(id, gp_handle_session((uint64_t)named));
    struct told *t = graph ? NULL : malloc(sizeof *t);
    if (t) {
        *t = (struct told){id, named, told};
        told = t;
    }
    pthread_mutex_unlock(&lock);
    return graph ? graph : named;
}

bool gpc_captures_told(uint32_t session)
{
    bool any = false;
    pthread_mutex_lock(&lock);
    for (const struct told *t = told; t && !any; t = t->next)
        any = gp_handle_session((uint64_t)t->graph) == session;
    pthread_mutex_unlock(&lock);
    return any;
}

/* Under `lock`. */
static void untell(struct told **at)
{
    struct told *t = *at;
    *at = t->next;
    free(t);
}

void gpc_captures_forget(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    struct told **at = &told;
    while (*at && (*at)->graph != graph)
        at = &(*at)->next;
    if (*at)
        untell(at);
    pthread_mutex_unlock(&lock);
}

CUgraph gpc_captures_lost(void)
{
    CUgraph graph = NULL;
    pthread_mutex_lock(&lock);
    forget_dead();
    if (!captures && told) {
        graph = told->graph;
        untell(&told);
    }
    pthread_mutex_unlock(&lock);
    return graph;
}

CUresult gpc_captures_may_end(uint64_t stream)
{
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (const struct capture *c = captures; c; c = c->next)
        if (c->stream == stream && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
            c->thread != gpc_thread()->number)
            r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    pthread_mutex_unlock(&lock);
    return r;
}

static bool forbids(const struct capture *c, const struct gpc_thread *thread)
{
    if (c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return c->thread == thread->number || (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                           thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUstreamCaptureMode gpc_captures_mode(const struct gpc_thread *thread)
{
    bool forbidden = false;
    if (!gpc_capture_active() || thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_mutex_lock(&lock);
    for (const struct capture *c = captures; c && !forbidden; c = c->next)
        forbidden = forbids(c, thread);
    pthread_mutex_unlock(&lock);
    return forbidden ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED;
}
