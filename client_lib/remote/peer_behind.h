/*
 * Events that are recorded right behind a copy to another host. That the bytes are there is known
 * there first: who waits for such an event on that host waits for the copy's own end, and not for
 * the news that it came to an end there, to be told here and back again.
 */
#ifndef GPC_PEER_BEHIND_H
#define GPC_PEER_BEHIND_H

#include <stdbool.h>

#include "route.h"

/* How much work was sent to the session so far. */
uint64_t gpc_behind_work(const struct gpc_session *s);
/* A copy has been submitted: `named` waits for its end, which `writes` comes to. It took `messages`
 * of work to the session of `named`, of which there had been so much. */
void gpc_behind_copy(const struct gpc_route *named, const struct gpc_route *writes,
                     uint64_t work_before, unsigned messages);
/* The work of the stream's session, if nothing was sent to it since such a copy in that stream, so that
 * an event that is recorded now stands for the copy's end; else 0. */
uint64_t gpc_behind_now(struct gpc_route on, CUstream stream);
/* The event has been recorded there, and it was so; else it stands for something else now. `adds`: the
 * record is work, too, of which nothing that follows has to know. */
void gpc_behind_recorded(const struct gpc_session *s, CUevent event, uint64_t work, bool adds);
/* The stream that the event's copy ends in, if it is of this session. It may only be waited for
 * if it is that stream itself, or nothing came behind the copy there. */
bool gpc_behind_end(const struct gpc_route *waits, CUevent event, struct gpc_route *end);

#endif
