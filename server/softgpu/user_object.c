/* User objects: ended by a function of the application's when nobody has a reference any more. */
#include "softgpu.h"

#include <limits.h>

struct CUuserObject_st {
    CUhostFn destroy;
    void *data;
    uint64_t references;
};

static void *end_object(void *arg)
{
    const struct CUuserObject_st object = *(CUuserObject)arg;
    free(arg);
    object.destroy(object.data);
    return NULL;
}

/* sg.lock is held, so the function runs on another thread. */
static void unref(CUuserObject object, uint64_t count)
{
    pthread_t thread;
    object->references -= count;
    if (object->references)
        return;
    sg_handle_remove(object);
    if (pthread_create(&thread, NULL, end_object, object) == 0)
        pthread_detach(thread);
    else
        sg_complain("a user object cannot be ended: there is no thread for its function");
}

static CUresult keep(struct sg_kept **kept, CUuserObject object, uint64_t count)
{
    struct sg_kept *k = *kept;
    while (k && k->object != object)
        k = k->next;
    if (!k) {
        if (!(k = malloc(sizeof(*k))))
            return CUDA_ERROR_OUT_OF_MEMORY;
        *k = (struct sg_kept){*kept, object, 0};
        *kept = k;
    }
    k->count += count;
    return CUDA_SUCCESS;
}

CUresult sg_kept_copy(struct sg_kept **to, const struct sg_kept *from)
{
    for (; from; from = from->next) {
        SG_TRY(keep(to, from->object, from->count));
        from->object->references += from->count;
    }
    return CUDA_SUCCESS;
}

void sg_kept_release(struct sg_kept **kept)
{
    while (*kept) {
        struct sg_kept *k = *kept;
        *kept = k->next;
        unref(k->object, k->count);
        free(k);
    }
}

/* ---- entry points ---- */
static bool is_count(unsigned count)
{
    return count > 0 && count <= INT_MAX;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags)
{
    SG_LOCKED;
    SG_READY();
    if (!object_out || !destroy || !is_count(initialRefcount) ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = malloc(sizeof(*object));
    if (!object || !sg_handle_add(object, SG_USER_OBJECT)) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *object = (struct CUuserObject_st){destroy, ptr, initialRefcount};
    *object_out = object;
    return CUDA_SUCCESS;
}

#define OBJECT_CHECK(object, count)                                                                \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(object, SG_USER_OBJECT) || !is_count(count))                                 \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    OBJECT_CHECK(object, count);
    object->references += count;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    OBJECT_CHECK(object, count);
    if (count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    unref(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
    OBJECT_CHECK(object, count);
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if (!sg_handle_is(graph, SG_GRAPH) || (flags && !move) || (move && count > object->references))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(keep(&graph->kept, object, count));
    object->references += move ? 0 : count;
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    OBJECT_CHECK(object, count);
    if (!sg_handle_is(graph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_kept **at = &graph->kept;
    while (*at && (*at)->object != object)
        at = &(*at)->next;
    struct sg_kept *k = *at;
    if (!k || k->count < count)
        return CUDA_ERROR_INVALID_VALUE;
    k->count -= count;
    if (k->count == 0) {
        *at = k->next;
        free(k);
    }
    unref(object, count);
    return CUDA_SUCCESS;
}
