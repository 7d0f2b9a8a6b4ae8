#include "failures.h"

#include "gpw_handlers.h"
#include "session.h"

/* Together they stay below the batches that a transport lets go without being read (256). */
#define AT_ONCE 32
#define LOOKS 128
/* No operation's number: calls of several kinds. */
#define SEVERAL UINT32_MAX

static struct gpw_failure *kept_of(struct gpw_failures *f, uint32_t op, int32_t result)
{
    for (unsigned i = 0; i < f->kinds; i++)
        if (f->kept[i].op == op && f->kept[i].result == result)
            return &f->kept[i];
    if (f->kinds < GPW_FAILURE_KINDS) {
        f->kept[f->kinds] = (struct gpw_failure){.op = op, .result = result};
        return &f->kept[f->kinds++];
    }
    struct gpw_failure *rest = &f->kept[GPW_FAILURE_KINDS - 1];
    rest->op = SEVERAL;
    return rest;
}

static int tell_kept(struct gpw_session *s)
{
    struct gpw_failures *f = &s->failures;
    int r = 0;
    for (unsigned i = 0; i < f->kinds && r == 0; i++)
        r = gpw_notify_gp_async_error(s, f->kept[i].op, f->kept[i].result, false, f->kept[i].count);
    f->kinds = 0;
    return r;
}

int gpw_failures_add(struct gpw_session *s, uint32_t op, int32_t result, bool sticky)
{
    struct gpw_failures *f = &s->failures;
    if (sticky || f->told < AT_ONCE) {
        f->told++;
        return gpw_notify_gp_async_error(s, op, result, sticky, 1);
    }
    struct gpw_failure *kept = kept_of(f, op, result);
    kept->count += kept->count < UINT32_MAX;
    return 0;
}

int gpw_failures_tell(struct gpw_session *s)
{
    s->failures.told = s->failures.looks = 0;
    return tell_kept(s);
}

void gpw_failures_look(struct gpw_session *s)
{
    if (s->failures.kinds == 0 || s->failures.looks == LOOKS)
        return;
    s->failures.looks++;
    tell_kept(s);
}
