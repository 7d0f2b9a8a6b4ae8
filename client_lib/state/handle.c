/*
 * One table per kind of handle, reserved whole (address space only) so that
 * look-ups need no lock and entries never move. An index comes back into use
 * with a new generation, oldest first.
 */
#include "handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "session.h"

struct entry {
    void *shadow;
    uint32_t generation;
    uint32_t live;      /* the generation + 1 while live: written last, read first */
    uint32_t next_free; /* index, 0 ends the list */
    uint32_t session;
};

static struct table {
    struct entry *entries; /* index 0 is never used */
    uint32_t used;         /* indexes ever used */
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

static struct entry *table_entries(struct table *table)
{
    if (!table->entries) {
        void *room = mmap(NULL, (size_t)GP_HANDLE_INDEX_MAX * sizeof(struct entry),
                          PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                          0);
        if (room != MAP_FAILED)
            __atomic_store_n(&table->entries, room, __ATOMIC_RELEASE);
    }
    return table->entries;
}

uint64_t gpc_handle_new(enum gp_handle_kind kind, uint32_t session)
{
    struct table *table = &tables[kind];
    uint64_t id = 0;
    pthread_mutex_lock(&lock);
    struct entry *entries = table_entries(table);
    uint32_t index = 0;
    if (entries && table->first_free) {
        index = table->first_free;
        table->first_free = entries[index].next_free;
        if (!table->first_free)
            table->last_free = 0;
    } else if (entries && table->used + 1 < GP_HANDLE_INDEX_MAX) {
        index = table->used + 1;
        /* pairs with the acquire in gpc_handle_each: the entries are there by then */
        __atomic_store_n(&table->used, index, __ATOMIC_RELEASE);
    }
    if (index) {
        struct entry *e = &entries[index];
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
    /* pairs with the release in table_entries */
    struct entry *entries = __atomic_load_n(&tables[kind].entries, __ATOMIC_ACQUIRE);
    if (!entries || index == 0 || index >= GP_HANDLE_INDEX_MAX)
        return NULL;
    struct entry *e = &entries[index];
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
            table->entries[table->last_free].next_free = index;
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
        struct entry *e = &table->entries[index];
        uint32_t live = __atomic_load_n(&e->live, __ATOMIC_ACQUIRE);
        if (live)
            visit(gp_handle_in_session(gp_handle_make(kind, index, live - 1), session_of(e)),
                  __atomic_load_n(&e->shadow, __ATOMIC_ACQUIRE), arg);
    }
    walk_end();
}
