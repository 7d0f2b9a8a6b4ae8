/*
 * The arena: memory that client and worker share for copies from and to pageable
 * memory. A slot belongs to the client until a message names it, then to the
 * worker until gp_arena_free (or the answer) gives it back.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpc_wire.h"
#include "maps.h"
#include "memory.h"
#include "ranges.h"
#include "session.h"

#define SLOTS 48u
#define ALL_SLOTS ((UINT64_C(1) << SLOTS) - 1)
#define DOWNLOAD_SLOTS ((UINT64_C(1) << (SLOTS - 8)) - 1)

struct arena {
    struct gp_share share;
    bool open;
    uint64_t busy; /* one bit per slot */
};
static struct arena arenas[GP_SESSIONS_MAX];
_Static_assert(SLOTS < 64, "one word of bits");

/* Windows that are kept already: they stay so when cuInit fails and is called again. */
static struct window {
    uint64_t begin, end;
} kept[2 * GP_DEVICES_MAX];
static unsigned kept_count;

bool gpc_window_is_kept(const struct gp_device_info *d)
{
    for (unsigned i = 0; i < kept_count; i++)
        if (kept[i].begin == d->window_begin && kept[i].end == d->window_end)
            return true;
    return false;
}

/* Whether something that can be used is mapped in the window. What nobody can touch is no
 * memory: tools such as ThreadSanitizer set large parts of the address space aside so. */
static bool is_used(const struct gp_device_info *d)
{
    FILE *maps = gpc_maps_open();
    struct gpc_mapping m;
    bool used = maps == NULL;
    while (!used && gpc_maps_next(maps, &m))
        used = m.begin < d->window_end && d->window_begin < m.end &&
               strncmp(m.rights, "---", 3) != 0;
    if (maps)
        fclose(maps);
    return used;
}

/* Its memcheck notes each 64 KiB of what is mapped: minutes, for a window. */
static bool in_valgrind(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "/vgpreload_");
}

static int window_keep(const struct gp_device_info *d)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *at = (void *)(uintptr_t)d->window_begin;
    size_t size = d->window_end - d->window_begin;
    if (size == 0 || gpc_window_is_kept(d))
        return 0;
    if (in_valgrind())
        return is_used(d) ? -EEXIST : -EOPNOTSUPP;
    void *got = mmap(at, size, PROT_NONE, flags, -1, 0);
    int r = got == at ? 0 : got == MAP_FAILED ? -errno : -EEXIST;
    if (got != at && got != MAP_FAILED) /* a kernel before 4.17 takes it for a hint */
        munmap(got, size);
    if (r == -EEXIST && !is_used(d))
        return 0;
    if (r != 0)
        return r;
    if (kept_count < sizeof kept / sizeof kept[0])
        kept[kept_count++] = (struct window){d->window_begin, d->window_end};
    return 0;
}

/* No device address may be a host address of this process. What is only not reserved, because
 * address space is limited here, stays apart as long as nobody maps it. */
const char *gpc_windows_keep(const struct gpc_session *s)
{
    for (uint32_t i = 0; i < s->snapshot->device_count; i++) {
        int r = window_keep(&s->snapshot->devices[i]);
        if (r == -EEXIST)
            return "a device's addresses are this process's own";
        if (r != 0)
            gpc_log(GPC_LOG_DEBUG, "device %u: its addresses cannot be kept free here: %s",
                    (unsigned)s->first + i, strerror(-r));
    }
    return NULL;
}

void gpc_memory_open(struct gpc_session *s)
{
    struct arena *a = &arenas[s->index];
    *a = (struct arena){.open = false};
    const struct gpc_route on = gpc_route_to(s);
    if (!gpc_session_shares(s))
        return;
    if (s->transport->share(s->channel, NULL, SLOTS * GP_CHUNK_MAX, &a->share) != 0 ||
        gpc_wire_gp_arena_open_on(&on, a->share.id, a->share.size) != CUDA_SUCCESS) {
        gpc_log(GPC_LOG_WARN, "no shared arena: copies travel as messages");
        return;
    }
    a->open = true;
}

/* The last of these slots that is free: downloads may take the first ones alone. */
static int take_free(struct arena *a, uint64_t among)
{
    uint64_t now = __atomic_load_n(&a->busy, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t unused = ~now & among;
        if (!unused)
            return -1;
        int slot = 63 - __builtin_clzll(unused);
        if (__atomic_compare_exchange_n(&a->busy, &now, now | UINT64_C(1) << slot, true,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return slot;
    }
}

int gpc_arena_take(struct gpc_session *s)
{
    struct arena *a = &arenas[s->index];
    if (!a->open)
        return -1;
    for (;;) {
        uint64_t seen = gpc_session_notices(s);
        int slot = take_free(a, ALL_SLOTS);
        if (slot >= 0)
            return slot;
        if (gpc_session_wait_notice(s, seen) != CUDA_SUCCESS)
            return -1;
    }
}

int gpc_arena_try(const struct gpc_session *s)
{
    struct arena *a = &arenas[s->index];
    return a->open ? take_free(a, DOWNLOAD_SLOTS) : -1;
}

void gpc_arena_give(const struct gpc_session *s, unsigned slot)
{
    __atomic_fetch_and(&arenas[s->index].busy, ~(UINT64_C(1) << slot), __ATOMIC_RELEASE);
}

void *gpc_arena_slot(const struct gpc_session *s, unsigned slot)
{
    return (char *)arenas[s->index].share.addr + slot * GP_CHUNK_MAX;
}

void gpc_on_gp_arena_free(struct gpc_session *s, const struct gp_req_gp_arena_free *q)
{
    if (q->slot < SLOTS)
        gpc_arena_give(s, q->slot);
}
