/* Host functions that streams of this session have still to pass. */
#ifndef GPW_HOST_FUNCTION_H
#define GPW_HOST_FUNCTION_H

#include "session.h"

/* 0, or -1 when there is no memory. */
int gpw_host_functions_open(struct gpw_session *s);
/* Whether any stream comes to one, those in running graphs included. */
bool gpw_host_functions_pending(struct gpw_session *s);

#endif
