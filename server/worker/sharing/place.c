#include "place.h"

#include <string.h>

#include "handles.h"
#include "message_fields.h"
#include "quota.h"

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

/* The current context's device. What the driver does not say now is asked again. */
static int ordinal_of(struct gpw_session *s, CUcontext context)
{
    struct gpw_places *p = &s->places;
    if (context && p->context == context)
        return p->ordinal;
    p->ordinal = context ? gpw_current_ordinal(s) : -1;
    p->context = p->ordinal >= 0 ? context : NULL;
    return p->ordinal;
}

void gpw_place_enter(struct gpw_session *s, const struct gp_header *h, struct gpw_place *p)
{
    *p = (struct gpw_place){.ordinal = -1};
    uint64_t id = stream_named(h);
    CUcontext named = id ? context_of(s, id) : NULL;
    if ((!named && gp_op_info(h->op)->work == GP_WORK_NONE) ||
        s->driver->cuCtxGetCurrent(&p->before) != CUDA_SUCCESS)
        return;
    p->moved = named && p->before != named && s->driver->cuCtxSetCurrent(named) == CUDA_SUCCESS;
    p->context = p->moved ? named : p->before;
    p->ordinal = ordinal_of(s, p->context);
    gpw_place_trust(s, p->context != NULL);
}

void gpw_place_leave(struct gpw_session *s, struct gpw_place *p)
{
    gpw_place_trust(s, false);
    if (p->moved)
        s->driver->cuCtxSetCurrent(p->before);
}

bool gpw_place_trust(struct gpw_session *s, bool trusted)
{
    bool before = s->places.known;
    s->places.known = trusted;
    return before;
}

bool gpw_place_known(struct gpw_session *s)
{
    CUcontext context = NULL;
    return s->places.known || (s->driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context);
}
