/* What sessions.c and session_open.c keep between them. */
#ifndef GPC_SESSIONS_H
#define GPC_SESSIONS_H

#include "session.h"

void gpc_sessions_set_count(unsigned open);
/* From now on the program sees what CUDA_VISIBLE_DEVICES makes visible, `list`; NULL: all there
 * is. NO_DEVICE where that is none, INVALID_DEVICE where one is in the list twice. */
CUresult gpc_sessions_show(const char *list);

#endif
