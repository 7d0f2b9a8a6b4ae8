// Device and constant variables by symbol; half and bfloat16; the properties of the device.
#include "check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ float weights[8];
__device__ int counts[4] = {10, 20, 30, 40};

__global__ void weigh(float *out, __half *half_out, __nv_bfloat16 *brain_out)
{
    int i = threadIdx.x;
    out[i] = weights[i % 8] + counts[i % 4];
    half_out[i] = __hadd(__float2half(weights[i % 8]), __float2half(0.25f));
    brain_out[i] = __float2bfloat16(weights[i % 8] * 3.0f);
    if (i < 4)
        counts[i] += 1;
}

int main(void)
{
    float host[8], out[32];
    int counted[4];
    unsigned short halves[32], brains[32];
    float *dout;
    __half *dhalf;
    __nv_bfloat16 *dbrain;
    void *address;
    size_t size;
    cudaDeviceProp properties;
    cudaFuncAttributes attributes;
    int version = 0;

    CUDA(cudaRuntimeGetVersion(&version));
    EXPECT(version == CUDART_VERSION && version / 1000 == E2E_RUNTIME,
           "the runtime is %d, the headers %d, and the build asked for %d", version, CUDART_VERSION,
           E2E_RUNTIME);
    for (int i = 0; i < 8; i++)
        host[i] = 0.5f * i;
    CUDA(cudaMemcpyToSymbol(weights, host, sizeof host));
    CUDA(cudaGetSymbolSize(&size, counts));
    CUDA(cudaGetSymbolAddress(&address, counts));
    EXPECT(size == sizeof counted && address != NULL, "counts has %zu bytes at %p", size, address);
    CUDA(cudaMalloc(&dout, sizeof out));
    CUDA(cudaMalloc(&dhalf, sizeof halves));
    CUDA(cudaMalloc(&dbrain, sizeof brains));
    weigh<<<1, 32>>>(dout, dhalf, dbrain);
    CUDA(cudaMemcpy(out, dout, sizeof out, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(halves, dhalf, sizeof halves, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(brains, dbrain, sizeof brains, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpyFromSymbol(counted, counts, sizeof counted));
    for (int i = 0; i < 32; i++) {
        float half_back = __half2float(__half(__half_raw{halves[i]}));
        __nv_bfloat16_raw raw;
        raw.x = brains[i];
        float brain_back = __bfloat162float(__nv_bfloat16(raw));
        EXPECT(out[i] == host[i % 8] + 10 * (i % 4 + 1), "out[%d] is %g", i, out[i]);
        EXPECT(half_back == host[i % 8] + 0.25f, "half %d is %g", i, half_back);
        EXPECT(brain_back == host[i % 8] * 3, "bfloat16 %d is %g", i, brain_back);
    }
    for (int i = 0; i < 4; i++)
        EXPECT(counted[i] == 10 * (i + 1) + 1, "counts[%d] is %d", i, counted[i]);
    CUDA(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024 &&
               properties.multiProcessorCount > 0 && properties.major >= 7 && properties.name[0],
           "the properties of '%s' make no sense", properties.name);
    CUDA(cudaFuncGetAttributes(&attributes, weigh));
    EXPECT(attributes.maxThreadsPerBlock > 0, "at most %d threads", attributes.maxThreadsPerBlock);
    CUDA(cudaFree(dout));
    CUDA(cudaFree(dhalf));
    CUDA(cudaFree(dbrain));
    return finish("symbols");
}
