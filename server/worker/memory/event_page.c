/*
 * Events that the client polls: their records have numbers, which the GPU writes into a page that
 * both sides map. Where they share no memory the worker says of each record, in the order in which
 * waits end, that it is over; or that the client has to ask (too many, no memory, an error).
 */
#include <stdlib.h>

#include "freed.h"
#include "graph.h"
#include "gpw_handlers.h"
#include "later.h"
#include "memory_internal.h"

/* Each is a question to the driver whenever the worker looks. */
#define TOLD_MOST 64

struct told {
    uint32_t place;
    uint64_t number;
};

static void told_end(struct gpw_session *s, struct told *t)
{
    s->memory->events_told--;
    free(t);
}

static void told_over(struct gpw_session *s, void *arg, CUresult result)
{
    struct told *t = arg;
    if (gpw_session_tell_first(s) == 0)
        gpw_notify_gp_event_over(s, t->place, result == CUDA_SUCCESS, t->number);
    told_end(s, t);
}

/* Its own wait, prepared: NULL, nobody is told. A capture forbids the client's threads what is done
 * for that, and not the worker. */
static struct told *told_begin(struct gpw_session *s, CUstream stream, uint32_t place,
                               uint64_t number, struct gpw_after **after)
{
    bool before = gpw_strict(s, false);
    bool may = s->memory->events_told < TOLD_MOST && gpw_not_capturing(s, stream) == CUDA_SUCCESS;
    struct told *t = may ? malloc(sizeof *t) : NULL;
    if (t && gpw_after_prepare(s, stream, told_over, t, after) != CUDA_SUCCESS) {
        free(t);
        t = NULL;
    }
    gpw_strict(s, before);
    if (t) {
        *t = (struct told){place, number};
        s->memory->events_told++;
    }
    return t;
}

static CUresult record_told(struct gpw_session *s, CUevent event, CUstream stream, uint32_t place,
                            uint64_t number)
{
    struct gpw_after *after;
    struct told *t = told_begin(s, stream, place, number, &after);
    CUresult r = s->driver->cuEventRecord(event, stream);
    if (!t) {
        gpw_notify_gp_event_over(s, place, 0, number);
        return r;
    }
    r = gpw_after_submitted(s, after, stream, r);
    if (r != CUDA_SUCCESS)
        told_end(s, t);
    return r;
}

void gpw_event_page_print(struct gpw_session *s)
{
    const struct gpw_gpu_page *page = &s->memory->event_page;
    if (page->open && page->share.size >= GP_EVENT_PAGE_ALL)
        __atomic_store_n((uint64_t *)page->share.addr + GP_EVENT_PAGE_PRINTS, 1, __ATOMIC_RELEASE);
}

CUresult gpw_event_record(struct gpw_session *s, CUevent event, CUstream stream, uint32_t place,
                          uint64_t number, bool told)
{
    if (told)
        return record_told(s, event, stream, place, number);
    struct gpw_gpu_page *page = &s->memory->event_page;
    if (number && (!page->open || place >= page->share.size / sizeof number ||
                   place >= GP_EVENT_PAGE_BYTES / sizeof number))
        return CUDA_ERROR_INVALID_VALUE;
    bool written = number && gpw_gpu_page_write(s, page, stream, place * sizeof number, number);
    if (number && !written)
        __atomic_store_n((uint64_t *)page->share.addr + GP_EVENT_PAGE_CLOSED, 1, __ATOMIC_RELEASE);
    CUresult r = s->driver->cuEventRecord(event, stream);
    if (written)
        gpw_freed_written(s, stream, false, (const uint64_t *)page->share.addr + place, number);
    return r;
}
