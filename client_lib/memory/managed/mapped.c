/*
 * Mapped memory over a network: pinned memory that kernels reach by its address. The GPU's host has
 * pinned memory of its own at the same address; here its blocks are open or closed as those of
 * managed memory are (managed.h). What differs is that host and GPU may use it at the same time:
 *
 *   - a touch waits for no work: it reads what is there now;
 *   - of a block that the host has written only the words that it changed go over, because the GPU
 *     may have changed others. The twin is what the GPU's host had of it last;
 *   - while work is under way that may change it, few blocks are open at a time, and not for long:
 *     so a host that polls sees what a kernel writes, what it reads behind that is no older, and
 *     what it writes goes over in the order of its blocks (mapped_hot.c).
 *
 * Words of one block that go over together are written largest piece first: a flag behind its data.
 * mapped_watch.c closes what was opened meanwhile.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "gpc_wire.h"
#include "managed_internal.h"
#include "memory.h"
#include "session.h"

/* What one message carries. */
#define PIECES_MOST 1024u
#define PIECES_BYTES ((uint32_t)128 << 10)

/* --- what the host has written -------------------------------------------------------------- */

struct piece {
    uint64_t into; /* the allocation */
    uint32_t bytes;
};

/* Under managed.c's lock. */
static struct {
    struct piece list[PIECES_MOST];
    uint32_t count, bytes;
} pieces;

static int larger_first(const void *a, const void *b)
{
    const struct piece *p = a, *q = b;
    return p->bytes != q->bytes ? (p->bytes < q->bytes ? 1 : -1) : (p->into < q->into ? -1 : 1);
}

/* From `now`, which is what lies at `begin` of the allocation. */
static void send_pieces(struct gpc_managed *m, uint64_t begin, const char *now)
{
    static char data[PIECES_BYTES];
    static uint64_t addresses[PIECES_MOST];
    static uint32_t sizes[PIECES_MOST];
    const struct gpc_route on = gpc_route_in(m->context);
    uint32_t at = 0;
    if (pieces.count == 0)
        return;
    qsort(pieces.list, pieces.count, sizeof pieces.list[0], larger_first);
    for (uint32_t i = 0; i < pieces.count; i++) {
        const struct piece *p = &pieces.list[i];
        memcpy(data + at, now + (p->into - begin), p->bytes);
        memcpy(m->twin + p->into, data + at, p->bytes);
        gpc_hot_sent(m, p->into, p->bytes);
        addresses[i] = m->begin + p->into;
        sizes[i] = p->bytes;
        at += p->bytes;
    }
    gpc_wire_gp_mapped_write_on(&on, pieces.count, addresses, sizes, at, data);
    pieces.count = pieces.bytes = 0;
}

static void add_piece(struct gpc_managed *m, uint64_t into, uint64_t bytes, uint64_t begin,
                      const char *now)
{
    while (bytes) {
        if (pieces.count == PIECES_MOST || pieces.bytes == PIECES_BYTES)
            send_pieces(m, begin, now);
        uint32_t room = PIECES_BYTES - pieces.bytes;
        uint32_t n = bytes < room ? (uint32_t)bytes : room;
        pieces.list[pieces.count++] = (struct piece){into, n};
        pieces.bytes += n;
        into += n;
        bytes -= n;
    }
}

/* The first word from `at` on that differs, or (`alike`) that does not; `end` if none. */
static uint64_t word(const char *now, const char *was, uint64_t at, uint64_t end, bool alike)
{
    const uint64_t skip = 256;
    while (!alike && end - at >= skip && memcmp(now + at, was + at, skip) == 0)
        at += skip;
    while (at < end && (memcmp(now + at, was + at, sizeof(uint32_t)) == 0) != alike)
        at += sizeof(uint32_t);
    return at;
}

void gpc_mapped_send_changed(struct gpc_managed *m, uint64_t begin, uint64_t bytes, const char *now)
{
    const char *was = m->twin + begin;
    uint64_t at = 0;
    while ((at = word(now, was, at, bytes, false)) < bytes) {
        uint64_t until = word(now, was, at, bytes, true);
        add_piece(m, begin + at, until - at, begin, now);
        at = until;
    }
    send_pieces(m, begin, now);
}

void gpc_mapped_bring_there(struct gpc_managed *m, uint32_t first, uint32_t n)
{
    uint64_t begin = first * m->block_bytes;
    gpc_mapped_send_changed(m, begin, gpc_managed_bytes(m, first, n),
                            gpc_area_alias(m->area, m->begin + begin));
}

/* --- what the GPU has ------------------------------------------------------------------------- */

/* What a call of ours has put there after it was closed goes over first. */
CUresult gpc_mapped_bring_here(struct gpc_managed *m, uint32_t first, uint32_t n)
{
    const struct gpc_route on = gpc_route_in(m->context);
    char *alias = gpc_area_alias(m->area, m->begin);
    uint64_t at = first * m->block_bytes, end = at + gpc_managed_bytes(m, first, n);
    CUresult r = CUDA_SUCCESS;
    gpc_mapped_bring_there(m, first, n);
    while (at < end && r == CUDA_SUCCESS) {
        uint32_t bytes = end - at < GP_CHUNK_MAX ? (uint32_t)(end - at) : (uint32_t)GP_CHUNK_MAX;
        uint32_t got = bytes;
        r = gpc_wire_gp_mapped_read_on(&on, m->begin + at, bytes, alias + at, &got);
        if (r == CUDA_SUCCESS && got != bytes)
            r = CUDA_ERROR_UNKNOWN;
        memcpy(m->twin + at, alias + at, bytes);
        at += bytes;
    }
    return r;
}

/* --- opening, and the end ----------------------------------------------------------------------- */

static bool expect(const struct gpc_managed *m)
{
    if (m->kind == GPC_MANAGED_REGISTERED)
        return gpc_faults_expect_here(m->begin, m->begin + m->bytes);
    gpc_faults_expect(m->begin, m->begin + m->bytes);
    return true;
}

/* Its pages become an area's, with what they hold. */
static CUresult adopt(const struct gpc_range *range, uint64_t bytes, uint64_t page)
{
    struct gpc_managed *m = gpc_managed_record(range->begin, bytes, page, CU_MEM_ATTACH_GLOBAL);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->context = range->context;
    m->twin = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (m->twin == MAP_FAILED) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(m->twin, bytes, MADV_DONTFORK);
    m->kind = range->registered ? GPC_MANAGED_REGISTERED : GPC_MANAGED_PINNED;
    gpc_managed_lock();
    if (expect(m))
        m->area = gpc_area_over(m->begin, bytes);
    CUresult r = m->area ? gpc_managed_add(m) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && gpc_managed_busy_mapped())
        gpc_mapped_for_now();
    if (r != CUDA_SUCCESS && m->kind == GPC_MANAGED_REGISTERED)
        gpc_faults_given_back(m->begin);
    gpc_managed_unlock();
    if (r != CUDA_SUCCESS) {
        munmap(m->twin, bytes);
        free(m);
    }
    return r;
}

/* First over there, then for copies, which take the worker's from then on; what earlier ones have
 * still to bring is waited for. */
static CUresult open_range(const struct gpc_range *range)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = (range->size + page - 1) / page * page;
    const struct gpc_route on = gpc_route_in(range->context);
    if (gpc_mapped_watch() != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_gp_mapped_open_on(&on, range->begin, bytes);
    if (r == CUDA_ERROR_NOT_SUPPORTED)
        gpc_log(GPC_LOG_WARN,
                "pinned memory at %#llx cannot be reached by kernels: its address is taken on the "
                "GPU's host; copy it instead",
                (unsigned long long)range->begin);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpc_pinned_settle((const void *)(uintptr_t)range->begin, range->size);
    if (r == CUDA_SUCCESS)
        r = adopt(range, bytes, page);
    if (r == CUDA_SUCCESS && gpc_range_share(range))
        return CUDA_SUCCESS;
    gpc_wire_gp_pinned_close_on(&on, range->begin);
    return r;
}

CUresult gpc_mapped_open(uint64_t address)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of rank 4 (session.h) */
    struct gpc_range range;
    struct gpc_own_calls before;
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    gpc_own_calls_begin(&before);
    if (!gpc_range_find(address, &range) || !gpc_range_is_host(&range))
        r = CUDA_ERROR_INVALID_VALUE;
    else if (gpc_registered_why_not(&range))
        r = CUDA_ERROR_NOT_SUPPORTED;
    else if (range.kind == GPC_RANGE_HOST)
        r = open_range(&range);
    gpc_own_calls_end(&before);
    pthread_mutex_unlock(&opening);
    return r;
}

/* Pointers are aligned; what looks like one and is not does no harm. */
CUresult gpc_mapped_open_named(const unsigned char *parameters, size_t bytes)
{
    struct gpc_range range;
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t value;
        memcpy(&value, parameters + at, sizeof value);
        if (!gpc_pinned_may(value) || !gpc_range_find(value, &range) ||
            range.kind != GPC_RANGE_HOST || range.registered)
            continue;
        CUresult r = gpc_mapped_open(value);
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_SUPPORTED)
            return r;
    }
    return CUDA_SUCCESS;
}

/* Pinned memory: closed here behind the message. Registered memory, which the program goes on to
 * use, is its own before that, so no touch asks for what is closed over there. */
CUresult gpc_mapped_close(const struct gpc_range *range)
{
    const struct gpc_route on = gpc_route_in(range->context);
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    if (range->registered)
        gpc_registered_give_back(range->begin);
    CUresult r = gpc_wire_gp_pinned_close_on(&on, range->begin);
    if (!range->registered)
        gpc_managed_drop(range->begin);
    gpc_own_calls_end(&before);
    return r;
}
