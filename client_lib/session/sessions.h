/* What sessions.c and session_open.c keep between them. */
#ifndef GPC_SESSIONS_H
#define GPC_SESSIONS_H

#include "session.h"

void gpc_sessions_set_count(unsigned open);

#endif
