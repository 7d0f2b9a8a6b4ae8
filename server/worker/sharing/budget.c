#include "budget.h"

#include <stdio.h>

#include "session.h"

static const char *const names[GPW_BUDGET_KINDS] = {"waits",  "staging", "host",
                                                    "images", "graphs",  "objects"};

static uint64_t load(const uint64_t *value)
{
    return __atomic_load_n(value, __ATOMIC_RELAXED);
}

void gpw_budget_open(struct gpw_session *s, uint64_t limit)
{
    s->budget.limit = limit;
}

static void tell(struct gpw_budget_use *use, enum gpw_budget kind, uint64_t bytes)
{
    if (use->told[kind])
        return;
    use->told[kind] = true;
    gpw_log("warn",
            "%llu bytes for %s are refused: the session has %llu of the %llu MiB of host "
            "memory that it may have (the server's setting 'session-host-memory')",
            (unsigned long long)bytes, names[kind], (unsigned long long)(load(&use->used) >> 20),
            (unsigned long long)(use->limit >> 20));
}

bool gpw_budget_take(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes)
{
    struct gpw_budget_use *use = &s->budget;
    uint64_t have = load(&use->used);
    do {
        if (use->limit && (have > use->limit || bytes > use->limit - have)) {
            __atomic_fetch_add(&use->refused, 1, __ATOMIC_RELAXED);
            tell(use, kind, bytes);
            return false;
        }
    } while (!__atomic_compare_exchange_n(&use->used, &have, have + bytes, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_fetch_add(&use->by_kind[kind], bytes, __ATOMIC_RELAXED);
    return true;
}

void gpw_budget_force(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes)
{
    __atomic_fetch_add(&s->budget.by_kind[kind], bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&s->budget.used, bytes, __ATOMIC_RELAXED);
}

void gpw_budget_give(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes)
{
    __atomic_fetch_sub(&s->budget.by_kind[kind], bytes, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&s->budget.used, bytes, __ATOMIC_RELAXED);
}

uint64_t gpw_budget_used(const struct gpw_session *s)
{
    return load(&s->budget.used);
}

uint64_t gpw_budget_limit(const struct gpw_session *s)
{
    return s->budget.limit;
}

uint64_t gpw_budget_refused(const struct gpw_session *s)
{
    return load(&s->budget.refused);
}

int gpw_budget_describe(const struct gpw_session *s, char *out, size_t size)
{
    size_t at = 0;
    for (unsigned kind = 0; kind < GPW_BUDGET_KINDS; kind++)
        at += (size_t)snprintf(at < size ? out + at : NULL, at < size ? size - at : 0,
                               "%s\"%s\": %llu", kind ? ", " : "{", names[kind],
                               (unsigned long long)load(&s->budget.by_kind[kind]));
    at += (size_t)snprintf(at < size ? out + at : NULL, at < size ? size - at : 0, "}");
    return (int)at;
}
