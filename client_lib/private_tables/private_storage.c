/*
 * c693336e: what each copy of the runtime keeps per context, by an address of its
 * own as the key. Reads are on the path of every runtime call and take no lock.
 *
 * All contexts share one open-addressed table that is never changed while it can
 * be found: a writer fills the spare one and makes it the current one. A reader
 * that was overtaken twice, and so looks at a table that is being filled again,
 * notices by the table's epoch and starts over. Tables are never freed, so there
 * is nothing to wait for; growth by doubling bounds what that keeps.
 */
#include "private_tables.h"

#if GPUPOOL_PRIVATE_TABLES
#include <pthread.h>
#include <stdlib.h>

#include "private_internal.h"

#define CAPACITY_FIRST 64u

struct entry {
    uintptr_t ctx; /* 0: free */
    uintptr_t key;
    uintptr_t value;
    gpc_storage_destructor destructor; /* this and the next for writers only */
    uint64_t serial;                   /* order of the puts */
};

struct table {
    uint64_t epoch; /* odd while it is being filled */
    size_t capacity;
    struct table *older; /* keeps outgrown tables reachable */
    struct entry entries[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all writers */
static struct table *current;                            /* NULL until the first put */
static struct table *spare;                              /* as large as `current` */
static struct table *outgrown;
static size_t live;
static uint64_t next_serial;

static size_t place(uintptr_t ctx, uintptr_t key, size_t capacity)
{
    uint64_t h = ((uint64_t)ctx * 31 + key) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 32) & (capacity - 1);
}

/* --- reading --- */

/* The entry's data are loaded with acquire: whoever sees a later filling's data
 * also sees that filling's epoch. Pairs with the releases in entry_write. */
static bool table_find(const struct table *t, uintptr_t ctx, uintptr_t key, uintptr_t *value)
{
    size_t at = place(ctx, key, t->capacity);
    for (size_t tries = 0; tries < t->capacity; tries++) {
        const struct entry *e = &t->entries[at];
        uintptr_t its = __atomic_load_n(&e->ctx, __ATOMIC_ACQUIRE);
        if (its == 0)
            return false;
        if (its == ctx && __atomic_load_n(&e->key, __ATOMIC_ACQUIRE) == key) {
            *value = __atomic_load_n(&e->value, __ATOMIC_ACQUIRE);
            return true;
        }
        at = (at + 1) & (t->capacity - 1);
    }
    return false;
}

static bool storage_find(uintptr_t ctx, uintptr_t key, uintptr_t *value)
{
    for (;;) {
        /* pairs with the release in table_publish */
        const struct table *t = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
        if (!t)
            return false;
        uint64_t epoch = __atomic_load_n(&t->epoch, __ATOMIC_ACQUIRE);
        bool found = table_find(t, ctx, key, value);
        if ((epoch & 1) == 0 && __atomic_load_n(&t->epoch, __ATOMIC_RELAXED) == epoch)
            return found;
    }
}

/* --- writing, under the lock --- */

static void entry_write(struct entry *to, const struct entry *from)
{
    __atomic_store_n(&to->key, from->key, __ATOMIC_RELEASE);
    __atomic_store_n(&to->value, from->value, __ATOMIC_RELEASE);
    to->destructor = from->destructor;
    to->serial = from->serial;
    __atomic_store_n(&to->ctx, from->ctx, __ATOMIC_RELEASE);
}

static void table_insert(struct table *t, const struct entry *entry)
{
    size_t at = place(entry->ctx, entry->key, t->capacity);
    while (t->entries[at].ctx != 0)
        at = (at + 1) & (t->capacity - 1);
    entry_write(&t->entries[at], entry);
}

/* Make the spare table the current one, with all entries but `without`, and `with`. */
static void table_publish(const struct entry *without, const struct entry *with)
{
    struct table *t = spare, *before = current;
    __atomic_store_n(&t->epoch, t->epoch + 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < t->capacity; i++)
        __atomic_store_n(&t->entries[i].ctx, 0, __ATOMIC_RELEASE);
    for (size_t i = 0; i < before->capacity; i++)
        if (before->entries[i].ctx != 0 && &before->entries[i] != without)
            table_insert(t, &before->entries[i]);
    if (with)
        table_insert(t, with);
    live = live + (with != NULL) - (without != NULL);
    __atomic_store_n(&t->epoch, t->epoch + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&current, t, __ATOMIC_RELEASE);
    /* a table of another size is outgrown and stays so */
    spare = before->capacity == t->capacity ? before : NULL;
}

static struct table *table_new(size_t capacity)
{
    struct table *t = NULL;
    if (capacity <= (SIZE_MAX - sizeof *t) / sizeof t->entries[0])
        t = calloc(1, sizeof *t + capacity * sizeof t->entries[0]);
    if (t)
        t->capacity = capacity;
    return t;
}

static void table_retire(struct table *t)
{
    t->older = outgrown;
    outgrown = t;
}

/* Two tables of the new size, as a removal must never need memory. */
static CUresult tables_grow(size_t capacity)
{
    struct table *a = table_new(capacity), *b = table_new(capacity);
    if (!a || !b) {
        free(a);
        free(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!current) {
        spare = b;
        __atomic_store_n(&current, a, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    }
    table_retire(current);
    table_retire(spare);
    spare = a;
    table_publish(NULL, NULL);
    spare = b;
    return CUDA_SUCCESS;
}

/* At most half full, so that a probe ends soon. */
static CUresult tables_make_room(void)
{
    if (!current)
        return tables_grow(CAPACITY_FIRST);
    return live < current->capacity / 2 ? CUDA_SUCCESS : tables_grow(current->capacity * 2);
}

static const struct entry *entry_of(uintptr_t ctx, uintptr_t key)
{
    for (size_t i = 0; current && i < current->capacity; i++)
        if (current->entries[i].ctx == ctx && current->entries[i].key == key)
            return &current->entries[i];
    return NULL;
}

/* A child of fork may go on using the storage: no lock may be held in it by a
 * thread that it does not have. */
static void fork_prepare(void)
{
    pthread_mutex_lock(&lock);
}
static void fork_done(void)
{
    pthread_mutex_unlock(&lock);
}
static void fork_watch(void)
{
    pthread_atfork(fork_prepare, fork_done, fork_done);
}

/* --- the three functions --- */

static CUresult context_or_current(CUcontext *ctx)
{
    if (!*ctx)
        *ctx = gpc_private_kept_host()->context_current();
    return *ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult gpc_storage_put(CUcontext ctx, void *key, void *value, gpc_storage_destructor destructor)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CUresult r = context_or_current(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    if (!gpc_private_kept_host()->context_is_live(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_once(&once, fork_watch);
    struct entry entry = {.ctx = (uintptr_t)ctx,
                          .key = (uintptr_t)key,
                          .value = (uintptr_t)value,
                          .destructor = destructor};
    pthread_mutex_lock(&lock);
    if (entry_of(entry.ctx, entry.key))
        r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS)
        r = tables_make_room();
    if (r == CUDA_SUCCESS) {
        entry.serial = next_serial++;
        table_publish(NULL, &entry);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

CUresult gpc_storage_delete(CUcontext ctx, void *key)
{
    CUresult r = context_or_current(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    const struct entry *entry = entry_of((uintptr_t)ctx, (uintptr_t)key);
    if (entry)
        table_publish(entry, NULL);
    pthread_mutex_unlock(&lock);
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult gpc_storage_get(void **value, CUcontext ctx, void *key)
{
    uintptr_t found;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = context_or_current(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    if (!storage_find((uintptr_t)ctx, (uintptr_t)key, &found))
        return CUDA_ERROR_INVALID_HANDLE;
    *value = (void *)found;
    return CUDA_SUCCESS;
}

/* Take out the context's oldest entry that was put before `limit`. */
static bool oldest_take(uintptr_t ctx, uint64_t limit, struct entry *out)
{
    const struct entry *oldest = NULL;
    for (size_t i = 0; current && i < current->capacity; i++) {
        const struct entry *e = &current->entries[i];
        if (e->ctx == ctx && e->serial < limit && (!oldest || e->serial < oldest->serial))
            oldest = e;
    }
    if (!oldest)
        return false;
    *out = *oldest;
    table_publish(oldest, NULL);
    return true;
}

/* One at a time, so that a destructor that deletes another entry is heard, and
 * without memory, so that none is skipped. What a destructor puts is not its own
 * context's end any more and stays. */
void gpc_storage_context_ended(void *ctx)
{
    struct entry entry;
    pthread_mutex_lock(&lock);
    uint64_t limit = next_serial;
    while (ctx && oldest_take((uintptr_t)ctx, limit, &entry)) {
        pthread_mutex_unlock(&lock);
        if (entry.destructor)
            entry.destructor(ctx, (void *)entry.key, (void *)entry.value);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}
#else
void gpc_storage_context_ended(void *ctx)
{
    (void)ctx;
}
#endif
