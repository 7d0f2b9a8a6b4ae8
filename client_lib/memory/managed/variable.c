/*
 * Variables of modules that are __managed__. The driver has put them into its process where it
 * found room, and the runtime writes that address into the program's pointer: so this process has
 * pages there as well, or the variable is refused. They are managed memory (managed.h) from then
 * on, whose bytes are over there at first. What lies in one piece of the driver's memory is opened
 * together.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "call.h"
#include "context.h"
#include "gpc_wire.h"
#include "managed_internal.h"
#include "memory.h"
#include "peer.h"
#include "session.h"
#include "stream.h"

/* More than any program's: a worker may say anything. */
#define BYTES_MOST (UINT64_C(1) << 36)

struct piece {
    uint64_t begin, bytes;
};

static bool piece_right(const struct piece *p, uint64_t address, uint64_t bytes)
{
    return p->begin % (uint64_t)sysconf(_SC_PAGESIZE) == 0 && p->bytes <= BYTES_MOST &&
           address >= p->begin && address - p->begin <= p->bytes &&
           bytes <= p->bytes - (address - p->begin) && !gpc_session_of_address(p->begin) &&
           !gpc_session_of_address(p->begin + p->bytes);
}

/* Under the lock. NULL, or why not. */
static const char *open_pages(struct gpc_managed *m)
{
    const char *why = "too many such pieces are open";
    if (!gpc_faults_expect_here(m->begin, m->begin + m->bytes))
        return why;
    why = "its address is taken in this process: start the program again, addresses are random";
    m->area = gpc_area_at(m->begin, m->bytes);
    if (m->area && gpc_managed_add(m) == CUDA_SUCCESS) {
        gpc_managed_set(m, 0, m->blocks, GPC_BLOCK_STALE);
        return NULL;
    }
    if (m->area)
        gpc_area_end(m->area);
    gpc_faults_given_back(m->begin);
    return why;
}

static CUresult open_piece(const struct piece *p)
{
    struct gpc_route on = gpc_route_in(gpc_current());
    struct gpc_managed *m = gpc_managed_record(p->begin, p->bytes, (uint64_t)sysconf(_SC_PAGESIZE),
                                               CU_MEM_ATTACH_GLOBAL);
    CUresult r = m && gpc_faults_watch() == 0 ? gpc_lane_own(&on, &m->own)
                                              : CUDA_ERROR_OUT_OF_MEMORY;
    const char *why = NULL;
    if (r == CUDA_SUCCESS) {
        m->kind = GPC_MANAGED_VARIABLE;
        gpc_managed_lock();
        why = gpc_managed_find(p->begin) ? "others lie there" : open_pages(m);
        gpc_managed_unlock();
    }
    if (why) {
        gpc_log(GPC_LOG_ERROR, "managed variables at %#llx cannot be reached here: %s",
                (unsigned long long)p->begin, why);
        r = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (r != CUDA_SUCCESS)
        free(m);
    return r;
}

/* Variables that are no managed ones, by session, so that each is asked about once: until a module
 * ends, and with it perhaps what was there. */
#define PLAIN_MOST 256u
static uint64_t plain[GP_SESSIONS_MAX][PLAIN_MOST];

static uint64_t *plain_place(uint64_t address)
{
    return &plain[gp_handle_session((uint64_t)gpc_current())][address / 8 % PLAIN_MOST];
}

static bool is_plain(uint64_t address)
{
    return __atomic_load_n(plain_place(address), __ATOMIC_RELAXED) == address;
}

static void plain_forget(void)
{
    for (unsigned i = 0; i < GP_SESSIONS_MAX * PLAIN_MOST; i++)
        __atomic_store_n(&plain[i / PLAIN_MOST][i % PLAIN_MOST], 0, __ATOMIC_RELAXED);
}

static CUresult open_variable(uint64_t address, uint64_t bytes)
{
    const struct gpc_route on = gpc_route_in(gpc_current());
    struct piece p;
    uint32_t managed = 0;
    CUresult r = gpc_wire_gp_managed_variable_on(&on, address, &managed, &p.begin, &p.bytes);
    if (r == CUDA_SUCCESS && !managed)
        __atomic_store_n(plain_place(address), address, __ATOMIC_RELAXED);
    if (r != CUDA_SUCCESS || !managed)
        return r;
    if (piece_right(&p, address, bytes))
        return open_piece(&p);
    gpc_log(GPC_LOG_ERROR,
            "the GPU's host says that the managed variable at %#llx lies in %llu bytes at %#llx, "
            "which cannot be opened here",
            (unsigned long long)address, (unsigned long long)p.bytes, (unsigned long long)p.begin);
    return CUDA_ERROR_UNKNOWN;
}

bool gpc_managed_has(uint64_t address)
{
    gpc_managed_lock();
    bool has = gpc_managed_find(address) != NULL;
    gpc_managed_unlock();
    return has;
}

CUresult gpc_managed_variable(uint64_t address, uint64_t bytes)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of rank 4 (session.h) */
    struct gpc_own_calls before;
    pthread_mutex_lock(&opening);
    gpc_own_calls_begin(&before);
    bool known = is_plain(address) || gpc_managed_has(address);
    CUresult r = known ? CUDA_SUCCESS : open_variable(address, bytes);
    gpc_own_calls_end(&before);
    pthread_mutex_unlock(&opening);
    return r;
}

/* --- the end ------------------------------------------------------------------------------------ */

void gpc_managed_variable_drop(uint64_t address)
{
    plain_forget();
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(address);
    if (m && m->kind == GPC_MANAGED_VARIABLE)
        gpc_managed_remove(m);
    gpc_managed_unlock();
}

/* Those that there are. */
struct list {
    unsigned count;
    struct {
        uint64_t begin;
        CUcontext context;
    } at[GPC_PLACES];
};

static void note(struct gpc_managed *m, void *arg)
{
    struct list *list = arg;
    if (m->kind != GPC_MANAGED_VARIABLE || list->count == GPC_PLACES)
        return;
    list->at[list->count].begin = m->begin;
    list->at[list->count++].context = m->context;
}

/* A module may be one of several that have its library's memory: the driver knows what is left. */
void gpc_managed_variables_ended(void)
{
    struct list list = {.count = 0};
    struct gpc_own_calls before;
    plain_forget();
    if (!gpc_managed_any())
        return;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    gpc_managed_each(note, &list);
    gpc_managed_unlock();
    for (unsigned i = 0; i < list.count; i++) {
        const struct gpc_route on = gpc_route_in(list.at[i].context);
        struct piece p;
        uint32_t managed = 0;
        gpc_wire_gp_managed_variable_on(&on, list.at[i].begin, &managed, &p.begin, &p.bytes);
        if (!managed)
            gpc_managed_variable_drop(list.at[i].begin);
    }
    gpc_own_calls_end(&before);
}
