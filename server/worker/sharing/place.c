#include "place.h"

#include <string.h>

#include "handles.h"
#include "message_fields.h"

/* Contexts of the streams that were named lately. */
#define KEPT 16
static struct kept {
    uint64_t stream; /* the client's id; 0: none */
    CUcontext context;
} kept[KEPT];

void gpw_place_forget(void)
{
    memset(kept, 0, sizeof kept);
}

/* The explicit stream that the message names, 0 if it names none. */
static uint64_t stream_named(const struct gp_header *h)
{
    uint64_t id = gp_message_id(h, gp_op_info(h->op)->stream_at);
    return id == GP_STREAM_LEGACY ? 0 : id;
}

static CUcontext context_of(struct gpw_session *s, uint64_t id)
{
    struct kept *k = &kept[gp_handle_index(id) % KEPT];
    uint64_t real = 0;
    CUcontext context = NULL;
    if (k->stream == id)
        return k->context;
    if (gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) != CUDA_SUCCESS ||
        s->driver->cuStreamGetCtx((CUstream)real, &context) != CUDA_SUCCESS)
        return NULL;
    *k = (struct kept){id, context};
    return context;
}

void gpw_place_enter(struct gpw_session *s, const struct gp_header *h, struct gpw_place *p)
{
    *p = (struct gpw_place){NULL, false};
    uint64_t id = stream_named(h);
    CUcontext context = id ? context_of(s, id) : NULL;
    if (!context || s->driver->cuCtxGetCurrent(&p->before) != CUDA_SUCCESS ||
        p->before == context)
        return;
    p->moved = s->driver->cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

void gpw_place_leave(struct gpw_session *s, struct gpw_place *p)
{
    if (p->moved)
        s->driver->cuCtxSetCurrent(p->before);
}

bool gpw_place_known(struct gpw_session *s)
{
    CUcontext context = NULL;
    return s->driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context;
}
