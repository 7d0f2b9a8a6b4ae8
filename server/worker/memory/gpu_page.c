/* Pages of the client's memory in which the GPU tells it what is over. */
#include "memory_internal.h"

/* In the first context whose work writes there: that of this client's others does not. */
static void page_register(struct gpw_session *s, struct gpw_gpu_page *page)
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

bool gpw_gpu_page_here(struct gpw_session *s, struct gpw_gpu_page *page)
{
    CUcontext current = NULL;
    if (!page->registered)
        page_register(s, page);
    s->driver->cuCtxGetCurrent(&current);
    return page->context && current == page->context;
}

bool gpw_gpu_page_write(struct gpw_session *s, struct gpw_gpu_page *page, CUstream stream,
                        uint64_t offset, uint64_t number)
{
    return gpw_gpu_page_here(s, page) &&
           s->driver->cuStreamWriteValue64_v2(stream, page->address + offset, number,
                                              CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* Its end undoes the pinning. Events are asked for from then on; other waits have the next
 * context's GPU write. */
void gpw_gpu_pages_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_memory *m = s->memory;
    if (m->event_page.context == context)
        m->event_page.context = NULL;
    if (m->completions.context == context)
        m->completions = (struct gpw_gpu_page){.share = m->completions.share, .open = true};
}
