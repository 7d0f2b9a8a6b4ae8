/*
 * Until when memory may be in use: the GPU's work of any context can be at it, whichever is current
 * where the program gives it back.
 */
#ifndef GPW_IN_USE_H
#define GPW_IN_USE_H

#include "session.h"

struct gpw_window;

/* Whether a stream captures: what it did before that cannot be waited for. */
bool gpw_users_capture(struct gpw_session *s);
/* As gpw_after_context, of every context that reaches the memory of this window; NULL: of all.
 * A context whose work an error has ended is not waited for. STREAM_CAPTURE_IMPLICIT: a stream
 * captures, unless what it did before that may be left out (`past_captures`). OUT_OF_MEMORY. */
CUresult gpw_after_users(struct gpw_session *s, const struct gpw_window *w, bool past_captures,
                         gpw_done *done, void *arg);

#endif
