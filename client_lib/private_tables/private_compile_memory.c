/* What was compiled or read lately, in memory: the least recently used goes first. */
#if GPUPOOL_PRIVATE_TABLES
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "private_compile.h"

#define BUCKETS 256
#define MEMORY_MOST ((uint64_t)64 << 20)

struct kept {
    struct kept *chain;         /* of its bucket */
    struct kept *newer, *older; /* by use */
    size_t size;
    unsigned char key[GPC_COMPILE_KEY];
    unsigned char data[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kept *buckets[BUCKETS];
static struct kept *newest, *oldest;
static uint64_t held; /* bytes */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* A forked child compiles, too, and must not find the lock held by a thread it has not. */
static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static void enter(void)
{
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

static struct kept **place(const unsigned char key[GPC_COMPILE_KEY])
{
    struct kept **at = &buckets[key[0]];
    while (*at && memcmp((*at)->key, key, GPC_COMPILE_KEY) != 0)
        at = &(*at)->chain;
    return at;
}

static void unlink_use(struct kept *k)
{
    *(k->newer ? &k->newer->older : &newest) = k->older;
    *(k->older ? &k->older->newer : &oldest) = k->newer;
}

static void link_newest(struct kept *k)
{
    k->newer = NULL;
    k->older = newest;
    *(newest ? &newest->newer : &oldest) = k;
    newest = k;
}

static void drop(struct kept **at)
{
    struct kept *k = *at;
    *at = k->chain;
    unlink_use(k);
    held -= k->size;
    free(k);
}

static void *copy_of(const struct kept *k, size_t *size)
{
    void *copy = malloc(k->size);
    if (copy) {
        memcpy(copy, k->data, k->size);
        *size = k->size;
    }
    return copy;
}

void *gpc_compile_memory_get(const unsigned char key[GPC_COMPILE_KEY], size_t *size)
{
    enter();
    struct kept *k = *place(key);
    void *copy = k ? copy_of(k, size) : NULL;
    if (copy) {
        unlink_use(k);
        link_newest(k);
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

static struct kept *kept_new(const unsigned char key[GPC_COMPILE_KEY], const void *data,
                             size_t size)
{
    struct kept *k = size < SIZE_MAX - sizeof *k ? malloc(sizeof *k + size) : NULL;
    if (!k)
        return NULL;
    k->size = size;
    memcpy(k->key, key, sizeof k->key);
    memcpy(k->data, data, size);
    return k;
}

void gpc_compile_memory_put(const unsigned char key[GPC_COMPILE_KEY], const void *data, size_t size,
                            uint64_t limit)
{
    if (limit > MEMORY_MOST)
        limit = MEMORY_MOST;
    struct kept *k = size <= limit ? kept_new(key, data, size) : NULL;
    if (!k)
        return;
    enter();
    struct kept **at = place(key);
    if (*at)
        drop(at);
    while (oldest && held + size > limit)
        drop(place(oldest->key));
    k->chain = buckets[key[0]];
    buckets[key[0]] = k;
    link_newest(k);
    held += size;
    pthread_mutex_unlock(&lock);
}
#endif
