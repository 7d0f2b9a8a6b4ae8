/* The library's own state: the lock, the set of live handles, messages. */
#include "softgpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

struct sg_state sg = {.lock = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};

int sg_lock_take(void)
{
    pthread_mutex_lock(&sg.lock);
    return 0;
}

void sg_lock_drop(const int *guard)
{
    (void)guard;
    pthread_mutex_unlock(&sg.lock);
}

uint64_t sg_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sg_complain(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    /* "warn: " is how the lines of a worker say their level. */
    fprintf(stderr, "warn: gpupool soft GPU: %s\n", line);
}

/*
 * Live objects: open addressing, a power of two of slots, at most half used.
 * A removed slot keeps a tombstone until the table is rebuilt.
 */
struct slot {
    uintptr_t object; /* 0 free, 1 tombstone */
    enum sg_kind kind;
};
static struct slot *slots;
static size_t slot_count, slots_used; /* used: tombstones included */

static size_t slot_of(const struct slot *table, size_t count, uintptr_t object)
{
    size_t i = (size_t)((object >> 4) * 0x9e3779b97f4a7c15u >> 20) & (count - 1);
    while (table[i].object != 0 && table[i].object != object)
        i = (i + 1) & (count - 1);
    return i;
}

static bool slots_rebuild(void)
{
    size_t live = 0;
    for (size_t i = 0; i < slot_count; i++)
        live += slots[i].object > 1;
    size_t count = 256;
    while (count < live * 4)
        count *= 2;
    struct slot *table = calloc(count, sizeof(*table));
    if (!table)
        return false;
    for (size_t i = 0; i < slot_count; i++)
        if (slots[i].object > 1)
            table[slot_of(table, count, slots[i].object)] = slots[i];
    free(slots);
    slots = table;
    slot_count = count;
    slots_used = live;
    return true;
}

bool sg_handle_add(const void *object, enum sg_kind kind)
{
    if (slots_used * 2 >= slot_count && !slots_rebuild())
        return false;
    size_t i = slot_of(slots, slot_count, (uintptr_t)object);
    slots_used += slots[i].object == 0;
    slots[i] = (struct slot){(uintptr_t)object, kind};
    return true;
}

void sg_handle_remove(const void *object)
{
    if (!slot_count || !object)
        return;
    size_t i = slot_of(slots, slot_count, (uintptr_t)object);
    if (slots[i].object == (uintptr_t)object)
        slots[i].object = 1;
}

/* A real driver follows a handle of what has ended, and does not survive that. Tests of who
 * must not give it one set GPUPOOL_SOFT_DEAD=abort. */
static void dead_handle(const void *object)
{
    const char *mode = getenv("GPUPOOL_SOFT_DEAD");
    if (!mode || strcmp(mode, "abort") != 0)
        return;
    sg_complain("the handle %p is of nothing that lives; a real driver crashes here", object);
    abort();
}

static const struct slot *find_slot(const void *object)
{
    if ((uintptr_t)object < 4096 || !slot_count)
        return NULL;
    const struct slot *s = &slots[slot_of(slots, slot_count, (uintptr_t)object)];
    return s->object == (uintptr_t)object ? s : NULL;
}

bool sg_handle_is(const void *object, enum sg_kind kind)
{
    const struct slot *s = find_slot(object);
    if (!s && (uintptr_t)object >= 4096)
        dead_handle(object);
    return s && s->kind == kind;
}

bool sg_handle_lives(const void *object, enum sg_kind kind)
{
    const struct slot *s = find_slot(object);
    return s && s->kind == kind;
}
