/* Workers of other releases: what they lack is not sent to them, but refused here. */
#include "operations_there.h"

#include <stdio.h>

#include "gp_ids.h"
#include "stats.h"

const char *gpc_operations_take(struct gpc_session *s, const uint32_t *known, uint32_t bytes)
{
    static char why[160];
    if (!gp_wire_agree(s->wire, s->wire) || bytes % sizeof *known ||
        !gp_shared_read(&s->shared, known, bytes / sizeof *known))
        return "what it says of its operations cannot be";
    /* it came with the names of now (proto/wire/image_name.h) */
    s->knows_image_names = gpc_session_has(s, GP_OP_gp_topology);
    const char *missing = gp_shared_lacks(&s->shared, gp_core_requests);
    if (!missing)
        return NULL;
    snprintf(why, sizeof why,
             "it does not know '%s', or in another form, and no session can do "
             "without",
             missing);
    return why;
}

bool gpc_sessions_have(uint16_t op)
{
    for (unsigned i = 0; i < gpc_session_count(); i++)
        if (!gpc_session_has(gpc_session_at(i), op))
            return false;
    return true;
}

CUresult gpc_session_lacks(const struct gpc_session *s, uint16_t op)
{
    static uint8_t told[GP_OP_COUNT];
    gpc_count_lacking(op);
    if (!__atomic_exchange_n(&told[op], 1, __ATOMIC_RELAXED))
        gpc_log(GPC_LOG_WARN,
                "%s: %s: not supported by this server's release of gpupool, or in "
                "another form; install the same release on both sides",
                s->server, gp_op_table[op].name);
    return CUDA_ERROR_NOT_SUPPORTED;
}
