/*
 * One table per kind of handle, which grows by blocks, so that look-ups need no lock and entries
 * never move. An index comes back into use with a new generation, oldest first. The blocks are of
 * malloc's memory: a reserve for all of them would count against `ulimit -d` and `-v`, and leak
 * checkers look for what shadows keep in no other.
 */
#include "handle.h"

#include <pthread.h>
#include <stdlib.h>

#include "session.h"

struct entry {
    void *shadow;
    uint32_t generation;
    uint32_t live;      /* the generation + 1 while live: written last, read first */
    uint32_t next_free; /* index, 0 ends the list */
    uint32_t session;
};

#define BLOCK_ENTRIES 1024u

static struct table {
    struct entry *blocks[GP_HANDLE_INDEX_MAX / BLOCK_ENTRIES];
    uint32_t used; /* indexes ever used; 0 never is */
    uint32_t first_free, last_free;
} tables[GP_HANDLE_KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Records that somebody has given up while a walk may still look at them. */
struct ended {
    struct ended *next;
    void *record;
};
static struct ended *ended;
static unsigned walks;

/* NULL: no handle had this index yet. */
static struct entry *entry_at(struct table *table, uint32_t index)
{
    /* pairs with the release in entry_make */
    struct entry *block = __atomic_load_n(&table->blocks[index / BLOCK_ENTRIES], __ATOMIC_ACQUIRE);
    return block ? &block[index % BLOCK_ENTRIES] : NULL;
}

static struct entry *entry_make(struct table *table, uint32_t index)
{
    struct entry *block = entry_at(table, index / BLOCK_ENTRIES * BLOCK_ENTRIES);
    if (!block) {
        block = calloc(BLOCK_ENTRIES, sizeof *block);
        if (!block)
            return NULL;
        __atomic_store_n(&table->blocks[index / BLOCK_ENTRIES], block, __ATOMIC_RELEASE);
    }
    return &block[index % BLOCK_ENTRIES];
}

/* The lock is held. NULL: there is no room. */
static struct entry *entry_take(struct table *table, uint32_t *index)
{
    struct entry *e;
    *index = table->first_free;
    if (*index) {
        e = entry_make(table, *index);
        table->first_free = e ? e->next_free : 0;
        if (!table->first_free)
            table->last_free = 0;
        return e;
    }
    *index = table->used + 1;
    e = *index < GP_HANDLE_INDEX_MAX ? entry_make(table, *index) : NULL;
    if (e) /* pairs with the acquire in gpc_handle_each: the entry is there by then */
        __atomic_store_n(&table->used, *index, __ATOMIC_RELEASE);
    return e;
}

uint64_t gpc_handle_new(enum gp_handle_kind kind, uint32_t session)
{
    struct table *table = &tables[kind];
    uint64_t id = 0;
    pthread_mutex_lock(&lock);
    uint32_t index;
    struct entry *e = entry_take(table, &index);
    if (e) {
        __atomic_store_n(&e->shadow, NULL, __ATOMIC_RELAXED);
        __atomic_store_n(&e->session, session, __ATOMIC_RELAXED);
        __atomic_store_n(&e->live, e->generation + 1, __ATOMIC_RELEASE);
        id = gp_handle_in_session(gp_handle_make(kind, index, e->generation), session);
    }
    pthread_mutex_unlock(&lock);
    return id;
}

/* A walk may read it while the index comes back into use. */
static uint32_t session_of(struct entry *e)
{
    return __atomic_load_n(&e->session, __ATOMIC_RELAXED);
}

static struct entry *find(uint64_t id)
{
    uint32_t kind = gp_handle_kind(id), index = gp_handle_index(id);
    if (kind == GP_HANDLE_NONE || kind >= GP_HANDLE_KINDS || (id & 15) != 0 ||
        (id & ~GP_HANDLE_SESSION_MASK) >> (GP_HANDLE_KIND_SHIFT + 6) != 0)
        return NULL;
    if (index == 0 || index >= GP_HANDLE_INDEX_MAX)
        return NULL;
    struct entry *e = entry_at(&tables[kind], index);
    if (!e)
        return NULL;
    uint32_t live = __atomic_load_n(&e->live, __ATOMIC_ACQUIRE);
    return live == gp_handle_generation(id) + 1 && session_of(e) == gp_handle_session(id) ? e
                                                                                          : NULL;
}

void gpc_handle_drop(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct entry *e = find(id);
    if (e) {
        struct table *table = &tables[gp_handle_kind(id)];
        uint32_t index = gp_handle_index(id);
        __atomic_store_n(&e->live, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&e->shadow, NULL, __ATOMIC_RELAXED);
        e->generation = (e->generation + 1) & ((1u << GP_HANDLE_GENERATION_BITS) - 1);
        e->next_free = 0;
        if (table->last_free)
            entry_at(table, table->last_free)->next_free = index;
        else
            table->first_free = index;
        table->last_free = index;
    }
    pthread_mutex_unlock(&lock);
}

bool gpc_handle_live(enum gp_handle_kind kind, uint64_t id)
{
    if (id & GP_HANDLE_WORKER_NAMED)
        return gp_handle_kind(id) == kind && gp_handle_session(id) < gpc_session_count();
    return gp_handle_kind(id) == kind && find(id) != NULL;
}

void *gpc_handle_shadow(enum gp_handle_kind kind, uint64_t id)
{
    if (gp_handle_kind(id) != kind)
        return NULL;
    struct entry *e = find(id);
    return e ? __atomic_load_n(&e->shadow, __ATOMIC_ACQUIRE) : NULL;
}

void gpc_handle_attach(uint64_t id, void *shadow)
{
    struct entry *e = find(id);
    if (e)
        __atomic_store_n(&e->shadow, shadow, __ATOMIC_RELEASE);
}

void gpc_handle_free(void *record)
{
    pthread_mutex_lock(&lock);
    struct ended *later = walks ? malloc(sizeof *later) : NULL;
    bool now = walks == 0;
    if (later) {
        *later = (struct ended){ended, record};
        ended = later;
    }
    pthread_mutex_unlock(&lock);
    if (now) /* without memory to note it the record is lost: somebody may look at it */
        free(record);
}

static void walk_begin(void)
{
    pthread_mutex_lock(&lock);
    walks++;
    pthread_mutex_unlock(&lock);
}

static void walk_end(void)
{
    pthread_mutex_lock(&lock);
    struct ended *list = --walks == 0 ? ended : NULL;
    if (walks == 0)
        ended = NULL;
    pthread_mutex_unlock(&lock);
    for (struct ended *next; list; list = next) {
        next = list->next;
        free(list->record);
        free(list);
    }
}

void gpc_handle_each(enum gp_handle_kind kind, void (*visit)(uint64_t, void *, void *), void *arg)
{
    struct table *table = &tables[kind];
    walk_begin();
    for (uint32_t index = 1; index <= __atomic_load_n(&table->used, __ATOMIC_ACQUIRE); index++) {
        struct entry *e = entry_at(table, index);
        uint32_t live = __atomic_load_n(&e->live, __ATOMIC_ACQUIRE);
        if (live)
            visit(gp_handle_in_session(gp_handle_make(kind, index, live - 1), session_of(e)),
                  __atomic_load_n(&e->shadow, __ATOMIC_ACQUIRE), arg);
    }
    walk_end();
}
