/*
 * User objects: what graphs keep alive. References of the program's are counted here. Those of a graph
 * are the GPU host's to count, with clones, instantiated graphs and launches under way: each time
 * that a graph is given some they are a keep, and the host says when nothing has it any more.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "host_function.h"
#include "own_thread.h"

struct CUuserObject_st {
    CUuserObject next;
    CUhostFn destroy;
    void *data;
    uint64_t references; /* the program's */
    unsigned keeps;      /* of graphs' that are not gone */
};

struct keep {
    struct keep *next;
    CUuserObject object;
    CUgraph graph;
    uint64_t cookie;
    uint32_t held; /* by that graph itself */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUuserObject objects;
static struct keep *keeps;

/* All below but the exported functions and threads' own are under `lock`. */
static bool is_object(CUuserObject object)
{
    CUuserObject o = objects;
    while (o && o != object)
        o = o->next;
    return o != NULL;
}

static bool is_count(unsigned count)
{
    return count > 0 && count <= INT_MAX;
}

static void *end_object(void *arg)
{
    CUuserObject object = arg;
    object->destroy(object->data);
    free(object);
    return NULL;
}

/* On a thread of its own: whoever let go of it may hold what the function waits for. */
static void end_aside(CUuserObject object)
{
    pthread_t thread;
    if (gp_thread_create(&thread, "object", NULL, end_object, object) == 0)
        pthread_detach(thread);
    else
        end_object(object);
}

/* Out of the list if nobody has a reference any more; NULL: somebody has. */
static CUuserObject take_unused(CUuserObject object)
{
    CUuserObject *at = &objects;
    if (object->references || object->keeps)
        return NULL;
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
    return object;
}

/* On the thread of host functions, which may run the program's, too. */
static void CUDA_CB on_gone(void *arg)
{
    struct keep *k = arg;
    pthread_mutex_lock(&lock);
    struct keep **at = &keeps;
    while (*at && *at != k)
        at = &(*at)->next;
    if (*at)
        *at = k->next;
    k->object->keeps--;
    CUuserObject unused = take_unused(k->object);
    pthread_mutex_unlock(&lock);
    free(k);
    if (unused)
        end_object(unused);
}

/* --- the program's references -------------------------------------------------------------- */

GPC_EXPORT CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                       unsigned int initialRefcount, unsigned int flags)
{
    CUresult r = gpc_enter(GP_OP_cuUserObjectCreate, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!object_out || !destroy || !is_count(initialRefcount) ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = malloc(sizeof *object);
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *object = (struct CUuserObject_st){objects, destroy, ptr, initialRefcount, 0};
    objects = object;
    pthread_mutex_unlock(&lock);
    *object_out = object;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    CUresult r = gpc_enter(GP_OP_cuUserObjectRetain, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    if (is_count(count) && is_object(object))
        object->references += count;
    else
        r = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return r;
}

GPC_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CUuserObject unused = NULL;
    CUresult r = gpc_enter(GP_OP_cuUserObjectRelease, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    if (is_count(count) && is_object(object) && object->references >= count) {
        object->references -= count;
        unused = take_unused(object);
    } else {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    if (unused)
        end_aside(unused);
    return r;
}

/* --- graphs' ----------------------------------------------------------------------------------- */

/* A keep that is counted already, so that the object stays while the host is told. */
static CUresult keep_new(CUgraph graph, CUuserObject object, unsigned count, bool move,
                         struct keep **out)
{
    struct keep *k = malloc(sizeof *k);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (!k)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *k = (struct keep){.object = object, .graph = graph, .held = count};
    pthread_mutex_lock(&lock);
    if (is_object(object) && (!move || object->references >= count)) {
        object->references -= move ? count : 0;
        object->keeps++;
        r = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    if (r == CUDA_SUCCESS)
        *out = k;
    else
        free(k);
    return r;
}

GPC_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                            unsigned int flags)
{
    struct keep *k = NULL;
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    CUresult r = gpc_enter(GP_OP_cuGraphRetainUserObject, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if ((flags && !move) || !is_count(count) || !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)graph))
        return CUDA_ERROR_INVALID_VALUE;
    if ((r = keep_new(graph, object, count, move, &k)) != CUDA_SUCCESS)
        return r;
    /* in the list before the host can say that it went */
    pthread_mutex_lock(&lock);
    k->next = keeps;
    keeps = k;
    r = gpc_graph_keeps(graph, count, on_gone, k, &k->cookie);
    if (r != CUDA_SUCCESS) {
        keeps = k->next;
        object->keeps--;
        object->references += move ? count : 0;
        free(k);
    }
    pthread_mutex_unlock(&lock);
    return gpc_leave(r);
}

/* How often the graph itself has it. */
static uint64_t held_by(CUgraph graph, CUuserObject object)
{
    uint64_t held = 0;
    for (const struct keep *k = keeps; k; k = k->next)
        held += k->graph == graph && k->object == object ? k->held : 0;
    return held;
}

static CUresult let_go(CUgraph graph, CUuserObject object, uint32_t count)
{
    CUresult r = CUDA_SUCCESS;
    for (struct keep *k = keeps; k && count && r == CUDA_SUCCESS; k = k->next) {
        if (k->graph != graph || k->object != object || k->held == 0)
            continue;
        uint32_t some = count < k->held ? count : k->held;
        k->held -= some;
        count -= some;
        r = gpc_wire_gp_graph_lets_go(graph, k->cookie, some);
    }
    return r;
}

GPC_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    CUresult r = gpc_enter(GP_OP_cuGraphReleaseUserObject, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!is_count(count) || !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)graph))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    r = held_by(graph, object) >= count ? let_go(graph, object, count) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return gpc_leave(r);
}
