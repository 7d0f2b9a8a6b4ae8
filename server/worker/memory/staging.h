/*
 * Pinned memory of the worker's own, one chunk a piece, through which copies to
 * memory that is not shared go.
 */
#ifndef GPW_STAGING_H
#define GPW_STAGING_H

#include "session.h"

struct gpw_staging {
    struct gpw_staging *next;
    struct gpw_staging *next_of_all;
    void *memory;
    CUcontext context; /* with whose end it is pinned no more */
    bool ended;
    /* Sent, and not yet returned by the channel. */
    struct gpw_wait leaving;
    uint64_t number; /* of the last message lent by then */
};

/* What a session's staging holds, in memory_internal.h. */
struct gpw_staging_pool {
    struct gpw_staging *free, *all;
    unsigned count, used; /* pieces there are, and those that copies have */
    bool failed;          /* the driver had no more when it was asked last */
    bool stuck;           /* waiting for some to come back took too long */
};

/* Have a few ready before the first copy; the context is current. */
void gpw_staging_prepare(struct gpw_session *s);
/* NULL when there is no memory for one more. */
struct gpw_staging *gpw_staging_take(struct gpw_session *s);
void gpw_staging_give(struct gpw_session *s, struct gpw_staging *piece);
/* Give it back once the channel has it no more: `s->lends` was its memory when it was sent. */
void gpw_staging_leave(struct gpw_session *s, struct gpw_staging *piece);
/* Whether a message may be handled now: one that takes a piece when none is left waits
 * until one comes back. `held_ns`: for how long it has waited. Not while streams are blocked:
 * then what it waits for may come as a message behind it. */
bool gpw_staging_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns);
/* The context ends: what was pinned in it goes, and what of that is in use when it comes back. */
void gpw_staging_context_ended(struct gpw_session *s, CUcontext context);

#endif
