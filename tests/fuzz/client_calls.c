#include "client_calls.h"

#include <stdlib.h>
#include <string.h>

/* The most that one copy moves: several messages. */
#define COPY_MOST (CALL_HOST_BYTES)

static unsigned called; /* host functions */

static void CUDA_CB on_host(void *number)
{
    __atomic_add_fetch((unsigned *)number, 1, __ATOMIC_RELAXED);
}

static void CUDA_CB on_stream(CUstream stream, CUresult status, void *number)
{
    (void)stream, (void)status;
    __atomic_add_fetch((unsigned *)number, 1, __ATOMIC_RELAXED);
}

static CUstream stream(struct calls *c)
{
    return call_handle(c, GP_HANDLE_STREAM);
}

static size_t length(struct calls *c)
{
    return call_number(c, sizeof(size_t)) % COPY_MOST;
}

/* --- copies: the host's end is as long as it has to be ------------------------------------- */

/* Pinned memory, each COPY_MOST bytes; what a context's end has freed is not. */
static void *pinned_memory[4];

static bool is_pinned(void *memory)
{
    unsigned flags;
    return memory && cuMemHostGetFlags(&flags, memory) == CUDA_SUCCESS;
}

static CUresult pinned(struct calls *c)
{
    void **memory = &pinned_memory[draw_below(&c->draw, 4)];
    if (is_pinned(*memory))
        cuMemFreeHost(*memory);
    *memory = NULL;
    return cuMemHostAlloc(memory, COPY_MOST, draw_byte(&c->draw) & 7);
}

static CUresult free_pinned(struct calls *c)
{
    void **memory = &pinned_memory[draw_below(&c->draw, 4)];
    void *gone = is_pinned(*memory) ? *memory : c->host;
    *memory = NULL;
    return cuMemFreeHost(gone);
}

static void *host_end(struct calls *c)
{
    uint8_t how = draw_byte(&c->draw);
    void *memory = pinned_memory[how & 3];
    return how >= 128 && is_pinned(memory) ? memory : c->host;
}

/* An end that may be a host's or a device's is one of these, or in a device's window. */
static CUdeviceptr any_end(struct calls *c)
{
    CUdeviceptr at = call_address(c);
    bool device = at >= GP_WINDOW_BASE && at < GP_WINDOW_BASE + 4 * GP_WINDOW_SIZE;
    return device ? at : (CUdeviceptr)(uintptr_t)host_end(c);
}

static CUresult upload(struct calls *c)
{
    CUdeviceptr to = call_address(c);
    size_t bytes = length(c);
    const void *from = host_end(c);
    return draw_below(&c->draw, 2) ? cuMemcpyHtoD_v2(to, from, bytes)
                                   : cuMemcpyHtoDAsync_v2(to, from, bytes, stream(c));
}

static CUresult download_pinned(struct calls *c)
{
    CUdeviceptr from = call_address(c);
    size_t bytes = length(c);
    void *to = host_end(c);
    return draw_below(&c->draw, 2) ? cuMemcpyDtoH_v2(to, from, bytes)
                                   : cuMemcpyDtoHAsync_v2(to, from, bytes, stream(c));
}

/* A copy that was captured may run for as long as its graph is there. */
static void *captured[64];
static unsigned captured_count;

static CUresult download(struct calls *c)
{
    CUdeviceptr from = call_address(c);
    size_t bytes = length(c);
    bool waits = draw_below(&c->draw, 2);
    if (!waits && captured_count == sizeof captured / sizeof captured[0])
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *exact = malloc(bytes ? bytes : 1); /* so that a byte too many is seen */
    if (!exact)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!waits) {
        captured[captured_count++] = exact;
        return cuMemcpyDtoHAsync_v2(exact, from, bytes, stream(c));
    }
    CUresult r = cuMemcpyDtoH_v2(exact, from, bytes);
    free(exact); /* pageable: nothing of it is awaited any more */
    return r;
}

static CUresult any_copy(struct calls *c)
{
    CUdeviceptr to = any_end(c), from = any_end(c);
    size_t bytes = length(c);
    return draw_below(&c->draw, 2) ? cuMemcpy(to, from, bytes)
                                   : cuMemcpyAsync(to, from, bytes, stream(c));
}

static CUresult peer_copy(struct calls *c)
{
    CUdeviceptr to = any_end(c), from = any_end(c);
    CUcontext there = call_handle(c, GP_HANDLE_CONTEXT), here = call_handle(c, GP_HANDLE_CONTEXT);
    size_t bytes = length(c);
    return draw_below(&c->draw, 2) ? cuMemcpyPeer(to, there, from, here, bytes)
                                   : cuMemcpyPeerAsync(to, there, from, here, bytes, stream(c));
}

/* Boxes small enough that the host's part has room for them. */
static CUresult copy_3d(struct calls *c)
{
    static const CUmemorytype types[] = {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
                                         CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_DEVICE};
    CUDA_MEMCPY3D box = {.WidthInBytes = draw_byte(&c->draw), .srcPitch = 256, .dstPitch = 256};
    box.srcMemoryType = types[draw_below(&c->draw, 4)];
    box.dstMemoryType = types[draw_below(&c->draw, 4)];
    box.Height = draw_below(&c->draw, 16);
    box.Depth = draw_below(&c->draw, 16);
    box.srcHeight = box.dstHeight = 16;
    box.srcDevice = any_end(c);
    box.dstDevice = any_end(c);
    box.srcHost = box.dstHost = host_end(c);
    box.srcXInBytes = draw_below(&c->draw, 64);
    box.dstZ = draw_below(&c->draw, 4);
    return draw_below(&c->draw, 2) ? cuMemcpy3D_v2(&box) : cuMemcpy3DAsync_v2(&box, stream(c));
}

/* --- kernels ------------------------------------------------------------------------------- */

/* Behind it is as much as the longest header says: a caller's image is as long as it says. */
static const void *image(struct calls *c)
{
    static _Alignas(8) char copy[8192];
    uint32_t size;
    const char *text = draw_image(draw_byte(&c->draw), &size);
    memset(copy, 0, sizeof copy);
    memcpy(copy, text, size < sizeof copy ? size : sizeof copy - 1);
    return copy;
}

static CUresult load(struct calls *c)
{
    CUmodule module;
    CUfunction function;
    char log[64];
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUresult r = cuModuleLoadDataEx(&module, image(c), draw_byte(&c->draw) & 2, options, values);
    if (r != CUDA_SUCCESS)
        return r;
    call_learn(c, GP_HANDLE_MODULE, (uint64_t)(uintptr_t)module);
    r = cuModuleGetFunction(&function, module, call_text(c));
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_FUNCTION, (uint64_t)(uintptr_t)function);
    return r;
}

static CUresult library(struct calls *c)
{
    CUlibrary made;
    CUkernel kernel;
    CUresult r = cuLibraryLoadData(&made, image(c), NULL, NULL, 0, NULL, NULL, 0);
    if (r != CUDA_SUCCESS)
        return r;
    call_learn(c, GP_HANDLE_LIBRARY, (uint64_t)(uintptr_t)made);
    r = cuLibraryGetKernel(&kernel, made, call_text(c));
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_FUNCTION, (uint64_t)(uintptr_t)kernel);
    return r;
}

/* The caller has what the kernel says that it takes, and the worker says what that is. */
static CUresult launch(struct calls *c)
{
    size_t offset, size;
    void *parameters[GP_PARAMETERS_MAX];
    CUfunction function = call_handle(c, GP_HANDLE_FUNCTION);
    for (unsigned i = 0; i < GP_PARAMETERS_MAX; i++)
        parameters[i] = c->host; /* no parameters are longer together */
    if (draw_below(&c->draw, 2))
        cuFuncGetParamInfo(function, draw_byte(&c->draw), &offset, &size);
    return cuLaunchKernel(function, 1 + draw_below(&c->draw, 3), 1, 1, 1 + draw_below(&c->draw, 70),
                          1, 1, (unsigned)draw_number(&c->draw, 4), stream(c), parameters, NULL);
}

/* --- the rest ------------------------------------------------------------------------------ */

static CUresult host_function(struct calls *c)
{
    return draw_below(&c->draw, 2) ? cuStreamAddCallback(stream(c), on_stream, &called, 0)
                                   : cuLaunchHostFunc(stream(c), on_host, &called);
}

/* In a graph it is called for as long as something can be launched that has it. */
static CUresult host_node(struct calls *c)
{
    const CUDA_HOST_NODE_PARAMS p = {on_host, &called};
    CUgraphNode node = call_handle(c, GP_HANDLE_GRAPH_NODE);
    switch (draw_below(&c->draw, 3)) {
    case 1:
        return cuGraphHostNodeSetParams(node, &p);
    case 2:
        return cuGraphExecHostNodeSetParams(call_handle(c, GP_HANDLE_GRAPH_EXEC), node, &p);
    default:
        break;
    }
    CUresult r = cuGraphAddHostNode(&node, call_handle(c, GP_HANDLE_GRAPH), NULL, 0, &p);
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_GRAPH_NODE, (uint64_t)(uintptr_t)node);
    return r;
}

/* What is freed now and then is given out again without a question. */
static CUresult allocate_again(struct calls *c)
{
    CUdeviceptr at;
    size_t bytes = 1 + draw_number(&c->draw, 4) % (4u << 20);
    CUresult r = cuMemAlloc_v2(&at, bytes);
    if (r != CUDA_SUCCESS)
        return r;
    call_learn_address(c, at);
    return draw_below(&c->draw, 2) ? CUDA_SUCCESS : cuMemFree_v2(at);
}

static CUresult ask_pointer(struct calls *c)
{
    uint64_t values[3][8];
    CUpointer_attribute which[] = {1 + draw_byte(&c->draw) % 20, CU_POINTER_ATTRIBUTE_CONTEXT,
                                   CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *data[] = {values[0], values[1], values[2]};
    return cuPointerGetAttributes(3, which, data, call_address(c));
}

static CUresult proc_address(struct calls *c)
{
    void *function;
    const struct call_entry *entry = &call_entries[draw_number(&c->draw, 2) % call_entry_count];
    return cuGetProcAddress_v2(entry->name, &function, (int)draw_number(&c->draw, 2), 0, NULL);
}

const struct call_entry client_calls[] = {
    {0, "upload", upload},
    {0, "download", download},
    {0, "download_pinned", download_pinned},
    {0, "any_copy", any_copy},
    {0, "peer_copy", peer_copy},
    {0, "copy_3d", copy_3d},
    {0, "load", load},
    {0, "library", library},
    {0, "launch", launch},
    {0, "host_function", host_function},
    {0, "pinned", pinned},
    {0, "free_pinned", free_pinned},
    {0, "ask_pointer", ask_pointer},
    {0, "proc_address", proc_address},
    {0, "host_node", host_node},
    {0, "allocate_again", allocate_again},
};
const unsigned client_call_count = sizeof client_calls / sizeof client_calls[0];

CUresult client_calls_furnish(struct calls *c)
{
    CUcontext context;
    CUdeviceptr memory;
    CUstream made;
    int devices;
    CUresult r = cuDeviceGetCount(&devices);
    for (CUdevice i = devices; r == CUDA_SUCCESS && i-- > 0;) {
        if ((r = cuDevicePrimaryCtxRetain(&context, i)) == CUDA_SUCCESS)
            r = cuCtxSetCurrent(context);
        if (r == CUDA_SUCCESS)
            call_learn(c, GP_HANDLE_CONTEXT, (uint64_t)(uintptr_t)context);
    }
    draw_start(&c->draw, NULL, 0);
    if (r == CUDA_SUCCESS && (r = load(c)) == CUDA_SUCCESS)
        r = cuMemAlloc_v2(&memory, 1 << 20);
    if (r != CUDA_SUCCESS)
        return r;
    call_learn_address(c, memory);
    r = cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_STREAM, (uint64_t)(uintptr_t)made);
    return r;
}
