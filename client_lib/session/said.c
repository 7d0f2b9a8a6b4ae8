/*
 * What the worker says unasked: errors of calls that nobody waited for, which a later call
 * returns, what kernels print, and messages for people.
 */
#include <stdio.h>
#include <string.h>

#include "error_log.h"
#include "gpc_wire.h"
#include "session.h"

static void set_first(int *kept, CUresult error)
{
    int none = 0;
    __atomic_compare_exchange_n(kept, &none, (int)error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void gpc_session_set_pending(struct gpc_session *s, CUresult error)
{
    set_first(&s->pending, error);
}

void gpc_session_set_sticky(struct gpc_session *s, CUresult error)
{
    set_first(&s->sticky, error);
}

CUresult gpc_session_gone(const struct gpc_session *s)
{
    bool leaving = s && __atomic_load_n(&s->leaving, __ATOMIC_RELAXED);
    return leaving ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult gpc_session_take_pending(struct gpc_session *s)
{
    if (!__atomic_load_n(&s->pending, __ATOMIC_RELAXED))
        return CUDA_SUCCESS;
    return (CUresult)__atomic_exchange_n(&s->pending, 0, __ATOMIC_RELAXED);
}

void gpc_on_gp_async_error(struct gpc_session *s, const struct gp_req_gp_async_error *q)
{
    CUresult error = gpc_result_from(q->result);
    const char *name = q->op < GP_OP_COUNT ? gp_op_table[q->op].name : NULL;
    char times[32] = "", message[160];
    if (q->count > 1)
        snprintf(times, sizeof times, " %u times", q->count);
    snprintf(message, sizeof message, "%s failed%s on the GPU host: CUDA error %d",
             name ? name : "a call", times, q->result);
    gpc_error_note(CU_LOG_LEVEL_ERROR, message);
    gpc_log(GPC_LOG_INFO, "%s%s", message, q->sticky ? " (sticky)" : "");
    if (q->sticky)
        gpc_session_set_sticky(s, error);
    else
        gpc_session_set_pending(s, error);
}

void gpc_on_gp_output(struct gpc_session *s, const struct gp_req_gp_output *q, const char *text)
{
    (void)s;
    fwrite(text, 1, q->bytes, stdout);
}

void gpc_printable(char *to, size_t room, const char *from, uint32_t bytes)
{
    size_t n = bytes < room ? bytes : room - 1;
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)from[i] < ' ' || from[i] == 0x7f ? ' ' : from[i];
    to[n] = '\0';
}

void gpc_on_gp_said(struct gpc_session *s, const struct gp_req_gp_said *q, const char *text)
{
    char said[sizeof s->why];
    gpc_printable(said, sizeof said, text, q->bytes);
    if (!q->ends) {
        gpc_log(GPC_LOG_WARN, "session %s on %s: %s", s->id, s->server, said);
        return;
    }
    memcpy(s->why, said, sizeof said);
    gpc_session_lose(s, "the worker ended the session");
}
