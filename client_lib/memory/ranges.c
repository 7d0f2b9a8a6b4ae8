#include "ranges.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct table {
    struct gpc_range *ranges; /* by address */
    size_t count, room;
} tables[GP_SESSIONS_MAX];  /* by place */
static unsigned places = 1; /* so many have ever been used */
static uint64_t last_id;

/* Index of the first range that ends behind `address`. Under the lock. */
static size_t after(const struct table *t, uint64_t address)
{
    const struct gpc_range *ranges = t->ranges;
    size_t low = 0, high = t->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        /* no sum of begin and size: a range may end where addresses do */
        if (ranges[middle].begin <= address &&
            address - ranges[middle].begin >= ranges[middle].size)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int make_room(struct table *t)
{
    if (t->count < t->room)
        return 0;
    size_t more = t->room ? 2 * t->room : 256;
    struct gpc_range *grown = realloc(t->ranges, more * sizeof *grown);
    if (!grown)
        return -1;
    t->ranges = grown;
    t->room = more;
    return 0;
}

static void remove_at(struct table *t, size_t at)
{
    memmove(t->ranges + at, t->ranges + at + 1, (t->count - at - 1) * sizeof *t->ranges);
    t->count--;
}

/* Memory of graphs and variables: the driver would not have given its address anew. What is this
 * host's may lie at any address that a driver has given to a variable. */
static bool gives_way(const struct gpc_range *old, const struct gpc_range *range)
{
    return old->kind == GPC_RANGE_GRAPH ||
           (old->kind == GPC_RANGE_GLOBAL && !gpc_range_is_host(range));
}

static void remove_gone(struct table *t, const struct gpc_range *range)
{
    for (size_t at = after(t, range->begin);
         at < t->count &&
         (t->ranges[at].begin <= range->begin || t->ranges[at].begin - range->begin < range->size);)
        if (gives_way(&t->ranges[at], range))
            remove_at(t, at);
        else
            at++;
}

int gpc_range_add(const struct gpc_range *range)
{
    struct table *t = &tables[range->place];
    pthread_rwlock_wrlock(&lock);
    int r = make_room(t);
    if (r == 0) {
        remove_gone(t, range);
        size_t at = after(t, range->begin);
        memmove(t->ranges + at + 1, t->ranges + at, (t->count - at) * sizeof *t->ranges);
        t->ranges[at] = *range;
        t->ranges[at].id = ++last_id;
        t->count++;
        if (places <= range->place)
            __atomic_store_n(&places, range->place + 1, __ATOMIC_RELAXED);
    }
    pthread_rwlock_unlock(&lock);
    return r;
}

/* Call `look` for each place until it is true: `here` first. */
static bool each_place(bool (*look)(struct table *, uint64_t, struct gpc_range *), unsigned here,
                       uint64_t address, struct gpc_range *out)
{
    if (look(&tables[here], address, out))
        return true;
    for (unsigned i = 0; i < places; i++)
        if (i != here && look(&tables[i], address, out))
            return true;
    return false;
}

static unsigned place_here(void)
{
    return __atomic_load_n(&places, __ATOMIC_RELAXED) == 1 ? 0 : gpc_range_place();
}

static bool remove_from(struct table *t, uint64_t begin, struct gpc_range *removed)
{
    size_t at = after(t, begin);
    if (at >= t->count || t->ranges[at].begin != begin)
        return false;
    *removed = t->ranges[at];
    remove_at(t, at);
    return true;
}

bool gpc_range_remove_at(unsigned place, uint64_t begin, struct gpc_range *removed)
{
    pthread_rwlock_wrlock(&lock);
    bool found = each_place(remove_from, place, begin, removed);
    pthread_rwlock_unlock(&lock);
    return found;
}

bool gpc_range_remove(uint64_t begin, struct gpc_range *removed)
{
    return gpc_range_remove_at(place_here(), begin, removed);
}

/* Where it should be, or anywhere: ranges of a worker that lies overlap. `count` if it is not
 * there any more. Under the lock. */
static size_t index_of(const struct table *t, const struct gpc_range *range)
{
    size_t at = after(t, range->begin);
    if (at >= t->count || t->ranges[at].id != range->id)
        for (at = 0; at < t->count && t->ranges[at].id != range->id;)
            at++;
    return at;
}

bool gpc_range_set_sync(const struct gpc_range *range, bool sync)
{
    struct table *t = &tables[range->place];
    pthread_rwlock_wrlock(&lock);
    size_t at = index_of(t, range);
    bool found = at < t->count;
    if (found)
        t->ranges[at].sync = sync;
    pthread_rwlock_unlock(&lock);
    return found;
}

bool gpc_range_forget(const struct gpc_range *range)
{
    struct table *t = &tables[range->place];
    pthread_rwlock_wrlock(&lock);
    size_t at = index_of(t, range);
    bool found = at < t->count;
    if (found)
        remove_at(t, at);
    pthread_rwlock_unlock(&lock);
    return found;
}

bool gpc_range_share(const struct gpc_range *range)
{
    struct table *t = &tables[range->place];
    pthread_rwlock_wrlock(&lock);
    size_t at = index_of(t, range);
    bool found = at < t->count;
    if (found) {
        t->ranges[at].kind = GPC_RANGE_SHARED;
        t->ranges[at].device_address = range->begin;
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

bool gpc_range_meets(uint64_t begin, uint64_t size)
{
    bool meets = false;
    pthread_rwlock_rdlock(&lock);
    for (unsigned i = 0; i < places && size && !meets; i++) {
        const struct table *t = &tables[i];
        size_t at = after(t, begin);
        meets = at < t->count &&
                (t->ranges[at].begin <= begin || t->ranges[at].begin - begin < size);
    }
    pthread_rwlock_unlock(&lock);
    return meets;
}

static bool find_in(struct table *t, uint64_t address, struct gpc_range *found)
{
    size_t at = after(t, address);
    if (at >= t->count || t->ranges[at].begin > address)
        return false;
    *found = t->ranges[at];
    return true;
}

bool gpc_range_find_at(unsigned place, uint64_t address, struct gpc_range *found)
{
    pthread_rwlock_rdlock(&lock);
    bool any = each_place(find_in, place, address, found);
    pthread_rwlock_unlock(&lock);
    return any;
}

void gpc_range_find_two(unsigned place, const uint64_t address[2], struct gpc_range *const to[2],
                        bool found[2])
{
    pthread_rwlock_rdlock(&lock);
    for (unsigned i = 0; i < 2; i++)
        found[i] = each_place(find_in, place, address[i], to[i]);
    pthread_rwlock_unlock(&lock);
}

bool gpc_range_find(uint64_t address, struct gpc_range *found)
{
    return gpc_range_find_at(place_here(), address, found);
}

void gpc_range_image_ended(uint64_t image)
{
    pthread_rwlock_wrlock(&lock);
    for (unsigned place = 0; place < places; place++) {
        struct table *t = &tables[place];
        for (size_t at = 0; at < t->count;)
            if (t->ranges[at].kind == GPC_RANGE_GLOBAL && t->ranges[at].from == image)
                remove_at(t, at);
            else
                at++;
    }
    pthread_rwlock_unlock(&lock);
}

/* The first range of the context from `from` on. */
static bool take_of(struct table *t, CUcontext context, uint64_t from, struct gpc_range *taken)
{
    pthread_rwlock_wrlock(&lock);
    size_t i = after(t, from);
    while (i < t->count && t->ranges[i].context != context)
        i++;
    bool more = i < t->count;
    if (more) {
        *taken = t->ranges[i];
        remove_at(t, i);
    }
    pthread_rwlock_unlock(&lock);
    return more;
}

void gpc_range_context_ended(CUcontext context, void (*ended)(const struct gpc_range *))
{
    /* By address, not by index: others add and remove while `ended` runs. */
    for (unsigned place = 0; place < GP_SESSIONS_MAX; place++) {
        struct gpc_range range = {.begin = 0};
        while (take_of(&tables[place], context, range.begin, &range))
            ended(&range);
    }
}
