/*
 * Where the bytes of answers and notices belong: a transport that brings long ones in pieces writes
 * them there itself (transport.h, land), others have them copied.
 */
#ifndef GPC_LANDING_H
#define GPC_LANDING_H

#include "session.h"

/* Before anything long is asked for. */
void gpc_landing_start(struct gpc_session *s);
/* Whether the message at hand has been written to where it belongs. */
bool gpc_landed(const struct gpc_session *s);
/* From here on nothing is written into memory of the application's: the session is lost. Without
 * locks of rank 8 or more. */
void gpc_ground(struct gpc_session *s);

/* Copy an answer to where its call wants it, unless it `landed`; false when it cannot be one. */
bool gpc_reply_fill(struct gpc_call *call, const struct gp_reply *reply, size_t size, bool landed);

#endif
