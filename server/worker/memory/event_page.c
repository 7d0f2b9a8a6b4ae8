/* Events that the client polls: their records have numbers, which the GPU writes into a page that
 * both sides map. */
#include "memory_internal.h"

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

CUresult gpw_event_record(struct gpw_session *s, CUevent event, CUstream stream, uint32_t place,
                          uint64_t number)
{
    struct gpw_event_page *page = &s->memory->event_page;
    if (number && (!page->open || place >= page->share.size / sizeof number))
        return CUDA_ERROR_INVALID_VALUE;
    if (number && !event_page_write(s, stream, place, number))
        __atomic_store_n((uint64_t *)page->share.addr + GP_EVENT_PAGE_CLOSED, 1, __ATOMIC_RELEASE);
    return s->driver->cuEventRecord(event, stream);
}
