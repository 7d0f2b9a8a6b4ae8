/* Which operations the workers of this process have (proto/wire/operations.h). */
#ifndef GPC_OPERATIONS_THERE_H
#define GPC_OPERATIONS_THERE_H

#include "session.h"

/* Take the list of a greeting's answer, of `bytes`, and the protocol that the worker chose
 * (s->wire). NULL, or why there can be no session, as one clause. */
const char *gpc_operations_take(struct gpc_session *s, const uint32_t *known, uint32_t bytes);
/* Whether this session's worker has it: what has not is asked in another way, or refused. */
static inline bool gpc_session_has(const struct gpc_session *s, uint16_t op)
{
    return gp_shared_has(&s->shared, op);
}
/* Whether the worker of every session has it. */
bool gpc_sessions_have(uint16_t op);
/* Refuse a call that the worker lacks: NOT_SUPPORTED, counted, and one line the first time. */
CUresult gpc_session_lacks(const struct gpc_session *s, uint16_t op);

#endif
