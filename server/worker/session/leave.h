/*
 * The way out. The driver may never come back from a call: a stream can be blocked at a value
 * that nobody writes. So a thread of its own, which asks the driver nothing, notices that
 * the client has gone, tells the server, which kills what is then still here, and sees to
 * the end where there is no server.
 */
#ifndef GPW_LEAVE_H
#define GPW_LEAVE_H

#include "session.h"

/* The client is in. */
int gpw_leave_watch(struct gpw_session *s);
/* The session is over: from here on nothing may take long. */
void gpw_leave_begin(struct gpw_session *s);

#endif
