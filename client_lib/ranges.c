#include "ranges.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct gpc_range *ranges; /* by address */
static size_t count, room;
static uint64_t last_id;

/* Index of the first range that ends behind `address`. Under the lock. */
static size_t after(uint64_t address)
{
    size_t low = 0, high = count;
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

int gpc_range_add(const struct gpc_range *range)
{
    pthread_rwlock_wrlock(&lock);
    int r = 0;
    if (count == room) {
        size_t more = room ? 2 * room : 256;
        struct gpc_range *grown = realloc(ranges, more * sizeof *grown);
        if (grown) {
            ranges = grown;
            room = more;
        } else {
            r = -1;
        }
    }
    if (r == 0) {
        size_t at = after(range->begin);
        memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
        ranges[at] = *range;
        ranges[at].id = ++last_id;
        count++;
    }
    pthread_rwlock_unlock(&lock);
    return r;
}

static void remove_at(size_t at)
{
    memmove(ranges + at, ranges + at + 1, (count - at - 1) * sizeof *ranges);
    count--;
}

bool gpc_range_remove(uint64_t begin, struct gpc_range *removed)
{
    pthread_rwlock_wrlock(&lock);
    size_t at = after(begin);
    bool found = at < count && ranges[at].begin == begin;
    if (found) {
        *removed = ranges[at];
        remove_at(at);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

bool gpc_range_meets(uint64_t begin, uint64_t size)
{
    pthread_rwlock_rdlock(&lock);
    size_t at = after(begin);
    bool meets = size && at < count &&
                 (ranges[at].begin <= begin || ranges[at].begin - begin < size);
    pthread_rwlock_unlock(&lock);
    return meets;
}

bool gpc_range_find(uint64_t address, struct gpc_range *found)
{
    pthread_rwlock_rdlock(&lock);
    size_t at = after(address);
    bool here = at < count && ranges[at].begin <= address;
    if (here)
        *found = ranges[at];
    pthread_rwlock_unlock(&lock);
    return here;
}

void gpc_range_context_ended(CUcontext context, void (*ended)(const struct gpc_range *))
{
    /* By address, not by index: others add and remove while `ended` runs. */
    for (uint64_t from = 0;;) {
        struct gpc_range range;
        pthread_rwlock_wrlock(&lock);
        size_t i = after(from);
        while (i < count && ranges[i].context != context)
            i++;
        bool more = i < count;
        if (more) {
            range = ranges[i];
            remove_at(i);
        }
        pthread_rwlock_unlock(&lock);
        if (!more)
            return;
        from = range.begin;
        ended(&range);
    }
}
