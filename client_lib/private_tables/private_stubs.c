/*
 * A function for every slot of every table, for those that we do not know: it
 * counts itself and says NOT_SUPPORTED. Each slot needs one of its own, as the
 * caller passes nothing that would tell which slot it came through.
 */
#if GPUPOOL_PRIVATE_TABLES
#include "private_internal.h"

static uint64_t calls[PRIVATE_TABLES][PRIVATE_SLOTS_MAX];

static const char *const names[PRIVATE_TABLES] = {
    [PRIVATE_RUNTIME] = "6bd5fb6c",  [PRIVATE_HOOKS] = "a094798c",
    [PRIVATE_CURRENT] = "42d85a81",  [PRIVATE_DIGEST] = "d4082055",
    [PRIVATE_CHECKS] = "263e8860",   [PRIVATE_IDENTITIES] = "21318c60",
    [PRIVATE_TOPOLOGY] = "1734dc26", [PRIVATE_MODULES] = "6e163fbe",
    [PRIVATE_COMPILE] = "da9151d3",
};

const char *gpc_private_name(enum private_id id)
{
    return names[id];
}

static CUresult refuse(enum private_id id, unsigned slot)
{
    const struct gpc_private_host *host = gpc_private_kept_host();
    if (__atomic_fetch_add(&calls[id][slot], 1, __ATOMIC_RELAXED) == 0 && host->unknown_slot)
        host->unknown_slot(names[id], slot);
    return CUDA_ERROR_NOT_SUPPORTED;
}

size_t gpc_private_counts(struct gpc_private_count *out, size_t room)
{
    size_t n = 0;
    for (unsigned id = 0; id < PRIVATE_TABLES; id++)
        for (unsigned slot = 0; slot < PRIVATE_SLOTS_MAX; slot++) {
            uint64_t seen = __atomic_load_n(&calls[id][slot], __ATOMIC_RELAXED);
            if (seen == 0)
                continue;
            if (n < room)
                out[n] = (struct gpc_private_count){names[id], slot, seen};
            n++;
        }
    return n;
}

/* The arguments are unknown, and the calling convention lets a callee ignore them. */
#define STUB(t, n)                                                                                 \
    static CUresult stub_##t##_##n(void)                                                           \
    {                                                                                              \
        return refuse(PRIVATE_##t, n);                                                             \
    }
#define NAME(t, n) stub_##t##_##n,
// clang-format off: lists of slots, which it breaks differently each time
/* Ten slots: DO(t, d0) … DO(t, d9), where the tens d may be empty. */
#define TEN(DO, t, d)                                                                              \
    DO(t, d##0) DO(t, d##1) DO(t, d##2) DO(t, d##3) DO(t, d##4)                                    \
    DO(t, d##5) DO(t, d##6) DO(t, d##7) DO(t, d##8) DO(t, d##9)
#define UP_TO_9(DO, t) TEN(DO, t, )
#define UP_TO_19(DO, t) TEN(DO, t, ) TEN(DO, t, 1)
#define UP_TO_99(DO, t)                                                                            \
    UP_TO_19(DO, t)                                                                                \
    TEN(DO, t, 2) TEN(DO, t, 3) TEN(DO, t, 4) TEN(DO, t, 5)                                        \
    TEN(DO, t, 6) TEN(DO, t, 7) TEN(DO, t, 8) TEN(DO, t, 9)
// clang-format on
#define STUBS(t, UP_TO)                                                                            \
    UP_TO(STUB, t)                                                                                 \
    static CUresult (*const stubs_##t[])(void) = {UP_TO(NAME, t)};

STUBS(RUNTIME, UP_TO_19)
STUBS(HOOKS, UP_TO_9)
STUBS(CURRENT, UP_TO_9)
STUBS(DIGEST, UP_TO_9)
STUBS(CHECKS, UP_TO_19)
STUBS(IDENTITIES, UP_TO_99)
STUBS(TOPOLOGY, UP_TO_19)
STUBS(MODULES, UP_TO_99)
STUBS(COMPILE, UP_TO_9)

void *gpc_private_stub(enum private_id id, unsigned slot)
{
    static CUresult (*const *const all[PRIVATE_TABLES])(void) = {
        [PRIVATE_RUNTIME] = stubs_RUNTIME,   [PRIVATE_HOOKS] = stubs_HOOKS,
        [PRIVATE_CURRENT] = stubs_CURRENT,   [PRIVATE_DIGEST] = stubs_DIGEST,
        [PRIVATE_CHECKS] = stubs_CHECKS,     [PRIVATE_IDENTITIES] = stubs_IDENTITIES,
        [PRIVATE_TOPOLOGY] = stubs_TOPOLOGY, [PRIVATE_MODULES] = stubs_MODULES,
        [PRIVATE_COMPILE] = stubs_COMPILE,
    };
    return (void *)(uintptr_t)all[id][slot];
}
#endif
