/*
 * Work of streams that the client has destroyed: whoever waits for all work of a context waits for
 * that as well. A stream of ours in each such context stands for them.
 */
#ifndef GPW_LEFT_H
#define GPW_LEFT_H

#include "session.h"

/* The stream that the message names is about to be destroyed. */
void gpw_left_take(struct gpw_session *s, const struct gp_header *h);
/* What stands for the destroyed streams of a context, the current one; NULL: none has work left. */
CUstream gpw_left_stream(struct gpw_session *s, CUcontext context);
/* The stream goes with its context. */
void gpw_left_context_ended(struct gpw_session *s, CUcontext context);

#endif
