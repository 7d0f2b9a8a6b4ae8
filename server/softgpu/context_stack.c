/* Each thread's stack of contexts, and which of them a call is about. */
#include "softgpu.h"

static _Thread_local CUcontext *stack;
static _Thread_local size_t depth, stack_room;
static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;

static void stack_key_make(void)
{
    if (pthread_key_create(&stack_key, free) != 0)
        abort(); /* only without memory while the process starts */
}

CUresult sg_context_push(CUcontext context)
{
    if (depth == stack_room) {
        size_t room = stack_room ? stack_room * 2 : 8;
        CUcontext *bigger = realloc(stack, room * sizeof(*bigger));
        if (!bigger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        stack = bigger;
        stack_room = room;
        pthread_once(&stack_once, stack_key_make);
        pthread_setspecific(stack_key, stack); /* freed when the thread ends */
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUcontext sg_context_peek(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUcontext sg_context_pop(void)
{
    return depth ? stack[--depth] : NULL;
}

static CUresult usable(CUcontext context)
{
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return sg.fault;
}

static CUresult exact_current(CUcontext *out)
{
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sg_on_stream_thread())
        return CUDA_ERROR_NOT_PERMITTED; /* CUDA calls from a host function */
    CUcontext context = sg_context_peek();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    SG_TRY(usable(context));
    *out = context;
    return CUDA_SUCCESS;
}

CUresult sg_context_exact(CUcontext context, CUcontext *out)
{
    if (!context)
        return exact_current(out);
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sg_handle_is(context, SG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    SG_TRY(usable(context));
    *out = context;
    return CUDA_SUCCESS;
}

CUresult sg_context_of(CUcontext context, CUcontext *out)
{
    SG_TRY(sg_context_exact(context, &context));
    *out = sg_context_root(context);
    return CUDA_SUCCESS;
}

CUresult sg_context_current(CUcontext *out)
{
    return sg_context_of(NULL, out);
}
