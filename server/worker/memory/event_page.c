/*
 * Events that the client polls: their records have numbers, which the GPU writes into a page that
 * both sides map. Where they share no memory the worker says of each record, in the order in which
 * waits end, that it is over; or that the client has to ask (too many, no memory, an error).
 */
#include <stdlib.h>

#include "graph.h"
#include "gpw_handlers.h"
#include "later.h"
#include "memory_internal.h"

/* Each is a question to the driver whenever the worker looks. */
#define TOLD_MOST 64

/* In the first context whose event it is: those of this client's others are not polled. */
static void event_page_register(struct gpw_session *s, struct gpw_event_page *page)
{
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostRegister_v2(page->share.addr, page->share.size,
                                                 CU_MEMHOSTREGISTER_PORTABLE |
                                                     CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuMemHostGetDevicePointer_v2(&page->address, page->share.addr, 0);
    if (r == CUDA_SUCCESS)
        s->driver->cuCtxGetCurrent(&page->context);
    gpw_strict(s, before);
    page->registered = true;
}

/* The GPU writes the number for this record when the stream comes to it. */
static bool event_page_write(struct gpw_session *s, CUstream stream, uint32_t place,
                             uint64_t number)
{
    struct gpw_event_page *page = &s->memory->event_page;
    CUcontext current = NULL;
    if (!page->registered)
        event_page_register(s, page);
    s->driver->cuCtxGetCurrent(&current);
    return page->context && current == page->context &&
           s->driver->cuStreamWriteValue64_v2(stream, page->address + place * sizeof number, number,
                                              CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

void gpw_event_page_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_event_page *page = &s->memory->event_page;
    if (page->context == context)
        page->context = NULL;
}

struct told {
    uint32_t place;
    uint64_t number;
};

static void told_end(struct gpw_session *s, struct told *t)
{
    s->memory->event_page.told--;
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
    struct gpw_event_page *page = &s->memory->event_page;
    bool before = gpw_strict(s, false);
    bool may = page->told < TOLD_MOST && gpw_not_capturing(s, stream) == CUDA_SUCCESS;
    struct told *t = may ? malloc(sizeof *t) : NULL;
    if (t && gpw_after_prepare(s, stream, told_over, t, after) != CUDA_SUCCESS) {
        free(t);
        t = NULL;
    }
    gpw_strict(s, before);
    if (t) {
        *t = (struct told){place, number};
        page->told++;
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

CUresult gpw_event_record(struct gpw_session *s, CUevent event, CUstream stream, uint32_t place,
                          uint64_t number, bool told)
{
    if (told)
        return record_told(s, event, stream, place, number);
    struct gpw_event_page *page = &s->memory->event_page;
    if (number && (!page->open || place >= page->share.size / sizeof number))
        return CUDA_ERROR_INVALID_VALUE;
    if (number && !event_page_write(s, stream, place, number))
        __atomic_store_n((uint64_t *)page->share.addr + GP_EVENT_PAGE_CLOSED, 1, __ATOMIC_RELEASE);
    return s->driver->cuEventRecord(event, stream);
}
