/* Errors that stick, and work that is cut off: needs the PTX engine. */
#include <stdbool.h>

#include "softgpu_check.h"

static void sticky(void)
{
    CUdeviceptr p;
    CUcontext context = softgpu_begin(), other, later;
    CUmodule module;
    CUfunction bad;
    OK(cuModuleLoadData(&module, softgpu_ptx));
    OK(cuModuleGetFunction(&bad, module, "bad"));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    /* as on a card: the process is told so in each context of it, and gets no new one */
    OK(cuCtxSetCurrent(other));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&p, 4));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxCreate(&later, NULL, 0, 0));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&p, 4));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
    OK(cuDevicePrimaryCtxReset(0)); /* for the process's life, as on a card */
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuDevicePrimaryCtxRetain(&context, 0));
}

/* Work that ends because its context does is nobody else's fault. */
static void ended_while_it_runs(void)
{
    static const char ptx[] = ".version 7.5\n.target sm_75\n.address_size 64\n"
                              ".visible .entry forever()\n{\n$again:\n  bra $again;\n}\n";
    CUcontext context = softgpu_begin(), other;
    CUmodule module;
    CUfunction forever;
    CUdeviceptr p;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&forever, module, "forever"));
    OK(cuLaunchKernel(forever, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&p, 4));
    OK(cuMemFree(p));
}

/* What a graph has captured may be gone when it is launched: an error of the GPU's, no crash. */
static void gone_under_a_graph(bool copies)
{
    const size_t bytes = 2 << 20;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory;
    CUdeviceptr at;
    CUcontext own;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    softgpu_begin();
    OK(cuCtxCreate(&own, NULL, 0, 0));
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemCreate(&memory, bytes, &prop, 0));
    OK(cuMemMap(at, bytes, 0, memory, 0));
    OK(cuMemSetAccess(at, bytes, &access, 1));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (copies)
        OK(cuMemcpyDtoDAsync(at, at + 4096, 64, stream));
    else
        OK(cuMemsetD8Async(at, 1, 64, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemUnmap(at, bytes));
    OK(cuGraphLaunch(exec, stream));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    OK(cuCtxDestroy(own));
    OK(cuDevicePrimaryCtxReset(0));
}

static void gone_under_a_set(void)
{
    gone_under_a_graph(false);
}

static void gone_under_a_copy(void)
{
    gone_under_a_graph(true);
}

int main(void)
{
    return softgpu_apart(ended_while_it_runs) || softgpu_apart(sticky) ||
           softgpu_apart(gone_under_a_set) || softgpu_apart(gone_under_a_copy);
}
