/*
 * How contexts begin and end.
 *
 * The structure of an ended context stays on sg.contexts, so what still
 * points at it (a thread's stack, an event) finds it ended and not gone.
 */
#include "array.h"

static CUresult context_start(CUcontext context)
{
    SG_TRY(sg.fault); /* a card is lost to the process, also for what is made later */
    context->legacy = sg_stream_new(context, 0, 0);
    if (!context->legacy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->legacy->is_legacy = true;
    context->id = ++sg.next_id;
    context->cancel = 0;
    context->peers = 0;
    context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    memset(context->limits, 0, sizeof(context->limits));
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    context->alive = true;
    return CUDA_SUCCESS;
}

CUresult sg_context_make(struct sg_device *device, unsigned flags, CUcontext *out)
{
    CUcontext context = calloc(1, sizeof(*context));
    if (!context || !sg_handle_add(context, SG_CONTEXT)) {
        free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->device = device;
    context->flags = flags;
    context->api_version = 3020;
    CUresult result = context_start(context);
    if (result != CUDA_SUCCESS) {
        sg_handle_remove(context);
        free(context);
        return result;
    }
    context->next = sg.contexts;
    sg.contexts = context;
    *out = context;
    return CUDA_SUCCESS;
}

/* As a real driver does: it runs those of all contexts on threads that it shares. */
static void wait_for_callbacks(void)
{
    while (sg.callbacks && !sg_on_stream_thread())
        pthread_cond_wait(&sg.progress, &sg.lock);
}

void sg_context_end(CUcontext context)
{
    __atomic_store_n(&context->cancel, 1, __ATOMIC_RELAXED); /* its kernels look at it */
    sg_context_wait(context);
    wait_for_callbacks();
    context->alive = false;
    sg_greens_end(context);
    while (context->modules)
        sg_module_unload(context->modules);
    while (context->streams)
        sg_stream_retire(context->streams);
    context->legacy = context->entry = NULL;
    sg_textures_release(&context->textures);
    sg_references_made_release(context);
    sg_arrays_release(context);
    sg_memory_release_context(context);
}

CUresult sg_context_primary(struct sg_device *device, CUcontext *out)
{
    if (!device->primary) {
        SG_TRY(sg_context_make(device, device->primary_flags, &device->primary));
        device->primary->primary = true;
    } else if (!device->primary->alive) {
        SG_TRY(context_start(device->primary));
        device->primary->flags = device->primary_flags;
    }
    *out = device->primary;
    return CUDA_SUCCESS;
}
