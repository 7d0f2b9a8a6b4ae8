/*
 * A debugging aid (GPUPOOL_WATCH_CAPTURES=1 in the server's environment): which step of the
 * worker made the driver give up a client's capture. After every step each stream is asked
 * whether it captures, as long as any does; the first capture that is found to be invalid is
 * named in the log, with the step before, and then no more are looked for.
 */
#ifndef GPW_CAPTURE_WATCH_H
#define GPW_CAPTURE_WATCH_H

#include "session.h"

void gpw_capture_watch_open(struct gpw_session *s);
void gpw_capture_look(struct gpw_session *s, const char *step, const char *what);

/* After a step: "the call" "cuMemFree_v2". */
static inline void gpw_capture_watch(struct gpw_session *s, const char *step, const char *what)
{
    if (__builtin_expect(s->watches_captures, 0))
        gpw_capture_look(s, step, what);
}

/* After a step that a message is the cause of. */
static inline void gpw_capture_watch_op(struct gpw_session *s, const char *step,
                                        const struct gp_header *h)
{
    if (__builtin_expect(s->watches_captures, 0))
        gpw_capture_look(s, step, h->op < GP_OP_COUNT ? gp_op_table[h->op].name : "");
}

#endif
