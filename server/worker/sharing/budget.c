#include "budget.h"

#include <stdio.h>

#include "session.h"

static const char *const names[GPW_BUDGET_KINDS] = {"waits",  "staging", "host",
                                                    "images", "graphs",  "objects"};
static uint64_t limit, used, refused;
static uint64_t by_kind[GPW_BUDGET_KINDS];
static bool told[GPW_BUDGET_KINDS];

static uint64_t load(const uint64_t *value)
{
    return __atomic_load_n(value, __ATOMIC_RELAXED);
}

void gpw_budget_open(uint64_t most)
{
    limit = most;
}

static void tell(enum gpw_budget kind, uint64_t bytes)
{
    if (told[kind])
        return;
    told[kind] = true;
    gpw_log("warn",
            "%llu bytes for %s are refused: the session has %llu of the %llu MiB of host "
            "memory that it may have (the server's setting 'session-host-memory')",
            (unsigned long long)bytes, names[kind], (unsigned long long)(load(&used) >> 20),
            (unsigned long long)(limit >> 20));
}

bool gpw_budget_take(enum gpw_budget kind, uint64_t bytes)
{
    uint64_t have = load(&used);
    do {
        if (limit && (have > limit || bytes > limit - have)) {
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
            tell(kind, bytes);
            return false;
        }
    } while (!__atomic_compare_exchange_n(&used, &have, have + bytes, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_fetch_add(&by_kind[kind], bytes, __ATOMIC_RELAXED);
    return true;
}

void gpw_budget_force(enum gpw_budget kind, uint64_t bytes)
{
    __atomic_fetch_add(&by_kind[kind], bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&used, bytes, __ATOMIC_RELAXED);
}

void gpw_budget_give(enum gpw_budget kind, uint64_t bytes)
{
    __atomic_fetch_sub(&by_kind[kind], bytes, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&used, bytes, __ATOMIC_RELAXED);
}

uint64_t gpw_budget_used(void)
{
    return load(&used);
}

uint64_t gpw_budget_limit(void)
{
    return limit;
}

uint64_t gpw_budget_refused(void)
{
    return load(&refused);
}

int gpw_budget_describe(char *out, size_t size)
{
    size_t at = 0;
    for (unsigned kind = 0; kind < GPW_BUDGET_KINDS; kind++)
        at += (size_t)snprintf(at < size ? out + at : NULL, at < size ? size - at : 0,
                               "%s\"%s\": %llu", kind ? ", " : "{", names[kind],
                               (unsigned long long)load(&by_kind[kind]));
    at += (size_t)snprintf(at < size ? out + at : NULL, at < size ? size - at : 0, "}");
    return (int)at;
}
