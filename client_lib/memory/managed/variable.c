/*
 * Variables of modules that are __managed__. The driver has put them into its process where it
 * found room, and the runtime writes that address into the program's pointer: so this process has
 * pages there as well, or the variable is refused. They are managed memory (managed.h) from then
 * on, whose bytes are over there at first. Several may lie on a page: the pages are opened with the
 * first of them, and the others become parts of what is open (parts.c).
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
#define ADDRESS_MOST (UINT64_C(1) << 56)

/* What the worker says that a variable is. */
static bool variable_right(struct gpc_span v, uint64_t address, uint64_t bytes)
{
    return v.begin < v.end && v.end - v.begin <= BYTES_MOST && v.end <= ADDRESS_MOST &&
           address >= v.begin && address < v.end && bytes <= v.end - address &&
           !gpc_session_of_address(v.begin) && !gpc_session_of_address(v.end);
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

/* Pages that nobody has, with this part of a variable, and the stream on which they travel. */
static CUresult open_new(struct gpc_span pages, struct gpc_span part, CUstream own)
{
    struct gpc_managed *m = gpc_managed_record(pages.begin, pages.end - pages.begin,
                                               (uint64_t)sysconf(_SC_PAGESIZE),
                                               CU_MEM_ATTACH_GLOBAL);
    CUresult r = m ? gpc_parts_add(m, part) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        m->kind = GPC_MANAGED_VARIABLE;
        m->own = own;
        const char *why = open_pages(m);
        if (!why)
            return CUDA_SUCCESS;
        gpc_log(GPC_LOG_ERROR, "managed variables at %#llx cannot be reached here: %s",
                (unsigned long long)pages.begin, why);
        r = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (m)
        free(m->parts);
    free(m);
    return r;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Pages that another variable has: where they are open here, its bytes come at once. */
static CUresult open_known(struct gpc_managed *m, struct gpc_span part)
{
    if (m->kind != GPC_MANAGED_VARIABLE)
        return CUDA_ERROR_UNKNOWN;
    CUresult r = gpc_parts_add(m, part);
    uint64_t at = part.begin;
    while (r == CUDA_SUCCESS && at < part.end) {
        uint64_t block = (at - m->begin) / m->block_bytes,
                 end = less(m->begin + (block + 1) * m->block_bytes, part.end);
        if (m->state[block] != GPC_BLOCK_STALE)
            r = gpc_managed_bring_span(m, (struct gpc_span){at, end});
        if (r != CUDA_SUCCESS)
            gpc_parts_remove(m, part);
        at = end;
    }
    return r;
}

/* Under the lock. A variable may have parts of several records, where others had been opened
 * before. */
static void close_span(struct gpc_span v)
{
    struct gpc_managed *m;
    for (uint64_t at = v.begin; (m = gpc_managed_behind(at)) && m->begin < v.end;) {
        at = m->begin + m->bytes;
        if (m->kind == GPC_MANAGED_VARIABLE && !gpc_parts_remove(m, v))
            gpc_managed_remove(m);
    }
}

/* Under the lock: all pages of a variable, one run after the other, or none of them. */
static CUresult open_span(struct gpc_span v, CUstream own)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t at = v.begin / page * page, end = (v.end + page - 1) / page * page;
    CUresult r = CUDA_SUCCESS;
    while (r == CUDA_SUCCESS && at < end) {
        struct gpc_managed *m = gpc_managed_behind(at);
        bool known = m && m->begin <= at;
        uint64_t to = !m ? end : less(end, known ? m->begin + m->bytes : m->begin);
        struct gpc_span part = {at > v.begin ? at : v.begin, less(to, v.end)};
        r = known ? open_known(m, part) : open_new((struct gpc_span){at, to}, part, own);
        if (r != CUDA_SUCCESS && at > v.begin)
            close_span((struct gpc_span){v.begin, at});
        at = to;
    }
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
    struct gpc_span v;
    uint32_t managed = 0;
    uint64_t size;
    CUresult r = gpc_wire_gp_managed_variable_on(&on, address, &managed, &v.begin, &size);
    if (r == CUDA_SUCCESS && !managed)
        __atomic_store_n(plain_place(address), address, __ATOMIC_RELAXED);
    if (r != CUDA_SUCCESS || !managed)
        return r;
    if (__builtin_add_overflow(v.begin, size, &v.end) || !variable_right(v, address, bytes)) {
        gpc_log(
            GPC_LOG_ERROR,
            "the GPU's host says that the managed variable at %#llx lies in %llu bytes at %#llx, "
            "which cannot be opened here",
            (unsigned long long)address, (unsigned long long)size, (unsigned long long)v.begin);
        return CUDA_ERROR_UNKNOWN;
    }
    if (gpc_faults_watch() != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpc_route lane = on;
    CUstream own; /* taken first: its lock comes before that of managed memory */
    r = gpc_lane_own(&lane, &own);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_managed_lock();
    r = open_span(v, own);
    gpc_managed_unlock();
    return r;
}

bool gpc_managed_has(uint64_t address)
{
    gpc_managed_lock();
    const struct gpc_managed *m = gpc_managed_find(address);
    bool has = m && gpc_parts_have(m, address);
    gpc_managed_unlock();
    return has;
}

CUresult gpc_managed_variable(uint64_t address, uint64_t bytes)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of rank 3 (session.h) */
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

void gpc_managed_variable_drop(uint64_t address, uint64_t bytes)
{
    plain_forget();
    gpc_managed_lock();
    close_span((struct gpc_span){address, address + bytes});
    gpc_managed_unlock();
}

/* The parts that there are, and the contexts that their variables were found in. */
struct list {
    size_t count, room;
    struct {
        uint64_t begin;
        CUcontext context;
    } *at;
};

static void count_parts(struct gpc_managed *m, void *arg)
{
    struct list *list = arg;
    if (m->kind == GPC_MANAGED_VARIABLE)
        list->room += gpc_parts_count(m);
}

static void note_parts(struct gpc_managed *m, void *arg)
{
    struct list *list = arg;
    if (m->kind != GPC_MANAGED_VARIABLE)
        return;
    for (size_t i = 0; i < gpc_parts_count(m) && list->count < list->room; i++) {
        list->at[list->count].begin = gpc_parts_at(m, i).begin;
        list->at[list->count++].context = m->context;
    }
}

static struct list list_parts(void)
{
    struct list list = {0};
    gpc_managed_lock();
    gpc_managed_each(count_parts, &list);
    list.at = calloc(list.room ? list.room : 1, sizeof *list.at);
    if (list.at)
        gpc_managed_each(note_parts, &list);
    gpc_managed_unlock();
    return list;
}

/* A module may be one of several that have its library's memory: the driver knows what is left. */
void gpc_managed_variables_ended(void)
{
    struct gpc_own_calls before;
    plain_forget();
    if (!gpc_managed_any())
        return;
    gpc_own_calls_begin(&before);
    struct list list = list_parts();
    for (size_t i = 0; i < list.count; i++) {
        const struct gpc_route on = gpc_route_in(list.at[i].context);
        uint64_t begin, bytes;
        uint32_t managed = 0;
        gpc_wire_gp_managed_variable_on(&on, list.at[i].begin, &managed, &begin, &bytes);
        if (!managed)
            gpc_managed_variable_drop(list.at[i].begin, 1);
    }
    free(list.at);
    gpc_own_calls_end(&before);
}
