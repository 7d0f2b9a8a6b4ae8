/* Green contexts: a device's primary context with some of its multiprocessors, and streams. */
#ifndef GPW_GREEN_H
#define GPW_GREEN_H

#include "session.h"

struct gpw_green {
    struct gpw_green *next;
    CUcontext context; /* what the driver converts it to */
    CUcontext primary; /* whose memory, modules and events are its own, too */
    CUgreenCtx green;
    bool ending;
};

/* Whose the objects are that are made while this context is current, but for streams. */
static inline CUcontext gpw_context_root(const struct gpw_session *s, CUcontext context)
{
    for (const struct gpw_green *g = s->greens; g; g = g->next)
        if (g->context == context)
            return g->primary;
    return context;
}

/* Of a descriptor, on a device whose primary context the client has retained. */
CUresult gpw_green_make(struct gpw_session *s, CUcontext *ctx, CUdevResourceDesc desc,
                        uint32_t ordinal, uint32_t flags);
/* A context's resource (NULL: the device's), with a name in the place of the driver's bytes. */
CUresult gpw_resource_of(struct gpw_session *s, CUdevResource *resource, CUdevResourceType type,
                         CUcontext context, CUdevice device);
/* context.c: a context within the limit, which is not current; green, if of a descriptor. */
CUresult gpw_context_make(struct gpw_session *s, CUcontext *ctx, CUdevResourceDesc desc,
                          CUdevice device, uint32_t flags);
/* The client wants it no more. False: it is no green one. */
bool gpw_green_ending(struct gpw_session *s, CUcontext context);
/* Destroy it for the driver; false: it is no green one. */
bool gpw_green_destroy(struct gpw_session *s, CUcontext context);
/* Whether the client still wants one of this primary context. */
bool gpw_green_is_of(const struct gpw_session *s, CUcontext primary);

#endif
