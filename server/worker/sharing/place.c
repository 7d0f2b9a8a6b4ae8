#include "place.h"

#include <string.h>

#include "handles.h"
#include "message_fields.h"

void gpw_place_forget(struct gpw_session *s)
{
    memset(&s->places, 0, sizeof s->places);
}

/* The explicit stream that the message names, 0 if it names none. */
static uint64_t stream_named(const struct gp_header *h)
{
    uint64_t id = gp_message_id(h, gp_op_info(h->op)->stream_at);
    return id == GP_STREAM_LEGACY ? 0 : id;
}

static CUcontext context_of(struct gpw_session *s, uint64_t id)
{
    unsigned at = gp_handle_index(id) % GPW_PLACES_KEPT;
    uint64_t real = 0;
    CUcontext context = NULL;
    if (s->places.kept[at].stream == id)
        return s->places.kept[at].context;
    if (gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) != CUDA_SUCCESS ||
        s->driver->cuStreamGetCtx((CUstream)real, &context) != CUDA_SUCCESS)
        return NULL;
    s->places.kept[at].stream = id;
    s->places.kept[at].context = context;
    return context;
}

void gpw_place_enter(struct gpw_session *s, const struct gp_header *h, struct gpw_place *p)
{
    *p = (struct gpw_place){NULL, false};
    uint64_t id = stream_named(h);
    CUcontext context = id ? context_of(s, id) : NULL;
    if (!context || s->driver->cuCtxGetCurrent(&p->before) != CUDA_SUCCESS || p->before == context)
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
