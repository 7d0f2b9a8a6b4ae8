/*
 * Calls that wait for the GPU inside the driver, made when no stream is blocked. A stream
 * is blocked on a host function of the client's or for another worker, and what ends that
 * comes as a message: the thread that takes messages must not wait for it.
 */
#ifndef GPW_LATER_H
#define GPW_LATER_H

#include "session.h"

bool gpw_streams_blocked(struct gpw_session *s);
/* Whether no fence holds the message back: work of the stream that one waits for comes behind that by
 * itself. */
bool gpw_fences_admit(struct gpw_session *s, const struct gp_header *h);
/* Run `run` now if no stream is blocked, else as soon as none is, in the context that is
 * current now. It is not run when the session ends first: then all goes with the process. */
void gpw_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                           void *arg);
/* As above, to end what a context has. It is not run if a context ends before: the object may
 * have gone with it, and a driver does not survive a dead handle. What another context has stays
 * until the session ends. */
void gpw_end_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                               void *arg);

#endif
