/* Host functions that streams of this session have still to pass. */
#ifndef GPW_HOST_FUNCTION_H
#define GPW_HOST_FUNCTION_H

#include "session.h"

/* 0, or -1 when there is no memory. */
int gpw_host_functions_open(struct gpw_session *s);
/* Whether any stream comes to one, those in running graphs included. */
bool gpw_host_functions_pending(struct gpw_session *s);
/* A driver comes to none any more in a context whose work has failed, which nobody may have been told
 * yet: those are not pending from here on. */
void gpw_host_functions_look(struct gpw_session *s);

/* What an instantiated graph alone was given, by its id, a whole graph has taken the place of. */
void gpw_host_functions_replaced(struct gpw_session *s, uint64_t exec);
/* The function of a node, if its graph keeps that for it; NULL: it does not. And it has none now. */
struct host_function *gpw_host_function_of(struct gpw_session *s, CUgraphNode node);
void gpw_host_function_left(struct gpw_session *s, struct host_function *f);

#endif
