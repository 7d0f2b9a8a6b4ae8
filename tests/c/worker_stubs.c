/* What parts of the worker say and end, for tests that have no session around them. */
#include "capture_watch.h"
#include "freed.h"
#include "graph_budget.h"
#include "nccl.h"
#include "shareable.h"

__attribute__((weak)) void gpw_log(const char *level, const char *format, ...)
{
    (void)level, (void)format;
}

__attribute__((weak)) void gpw_session_end(struct gpw_session *s, const char *format, ...)
{
    (void)format;
    s->ended = true;
}

__attribute__((weak)) void gpw_capture_look(struct gpw_session *s, const char *step,
                                            const char *what)
{
    (void)s, (void)step, (void)what;
}

__attribute__((weak)) int gpw_session_broken(struct gpw_session *s, const char *what)
{
    gpw_session_end(s, "%s", what);
    return -1;
}

__attribute__((weak)) void gpw_graph_captured(struct gpw_session *s, uint64_t id)
{
    (void)s, (void)id;
}

__attribute__((weak)) void gpw_shareable_gone(struct gpw_session *s, enum gpw_shared_kind kind,
                                              const void *own)
{
    (void)s, (void)kind, (void)own;
}

__attribute__((weak)) void gpw_shareable_events_context_ended(struct gpw_session *s)
{
    (void)s;
}

__attribute__((weak)) bool gpw_nccl_give_up(struct gpw_session *s, uint32_t ordinal, uint64_t over)
{
    (void)s, (void)ordinal, (void)over;
    return false;
}

__attribute__((weak)) bool gpw_freed_in(const struct gpw_session *s, CUstream stream)
{
    (void)s, (void)stream;
    return false;
}

__attribute__((weak)) void gpw_freed_written(struct gpw_session *s, CUstream stream, bool context,
                                             const uint64_t *word, uint64_t number)
{
    (void)s, (void)stream, (void)context, (void)word, (void)number;
}
