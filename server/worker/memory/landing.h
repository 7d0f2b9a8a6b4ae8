/*
 * Long messages of a network lie in memory of the channel's that comes again (transport.h, keep).
 * Pinned, the GPU reads an upload's bytes where they lie: nobody copies them once more.
 */
#ifndef GPW_LANDING_H
#define GPW_LANDING_H

#include "session.h"

#define GPW_LANDINGS_MOST 16
/* A message begins one. */
#define GPW_LANDING_PAGE 4096u

/* Those that are pinned, in memory_internal.h. */
struct gpw_landings {
    unsigned count;
    bool ever; /* some memory of the channel's is pinned, or was and may still be */
    void *
        own; /* a message's bytes, not pinned, that what is not kept is copied to; NULL: not yet needed */
    struct gpw_landing {
        const void *begin;
        CUcontext context; /* with whose end it is pinned no more */
    } at[GPW_LANDINGS_MOST];
};

/* Copy bytes of the message at hand to the device; if they are long, from where they lie. */
CUresult gpw_landing_upload(struct gpw_session *s, CUdeviceptr dst, CUstream stream, uint32_t bytes,
                            const void *data);
/* Where the driver is to copy bytes of the message at hand from that is not kept: it must have taken
 * them over when it returns, which it has not from pinned memory, and the next message lies there.
 * They themselves, or a copy that is there until the next one; NULL: no memory. */
const void *gpw_landing_bytes(struct gpw_session *s, const void *data, uint32_t bytes);
void gpw_landings_context_ended(struct gpw_session *s, CUcontext context);

#endif
