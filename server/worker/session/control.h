/*
 * The control socket: whichever gpupool-server is there connects to it, asks `status`
 * and may say `stop REASON`, or `say TEXT`, which the client is told (one line each, at
 * most 511 bytes). The connection staying open means the worker lives.
 */
#ifndef GPW_CONTROL_H
#define GPW_CONTROL_H

#include "session.h"

/* Listen at `path` (a Unix socket, replaced if stale) on a thread of its own; the
 * answers are about `s`. 0, or -1 with a log line. */
int gpw_control_open(const char *path, const char *id, struct gpw_session *s);
/* Whether a server said `stop`. */
bool gpw_control_stopped(void);
/* What a server wants the client to be told, once; false: nothing new. */
bool gpw_control_said(char *text, size_t size);
void gpw_control_close(void);

#endif
