// Variables that are __managed__, as programs use them: by name, on the host and in kernels.
#include "check.h"

#include <cuda_runtime.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t cuda_result = (call);                                                          \
        REQUIRE(cuda_result == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_result));     \
    } while (0)

#define COUNT 20000

__managed__ int counter = 41;
__managed__ int values[COUNT] = {1, 2, 3};
__managed__ int *reached;
__device__ int plain = 7;

__global__ void bump(int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] += plain;
    if (i == 0) {
        counter++;
        *reached += 2;
    }
}

// A program that ends before it has called anything is right, too.
static void initial(void)
{
    EXPECT(counter == 41, "the counter begins as %d", counter);
    EXPECT(values[1] == 2 && values[2] == 3 && values[COUNT - 1] == 0,
           "the values begin as %d, %d, %d", values[1], values[2], values[COUNT - 1]);
}

static void both_ways(void)
{
    reached = &values[COUNT - 1];
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    for (int round = 1; round <= 5; round++) {
        bump<<<(COUNT + 255) / 256, 256>>>(COUNT - 1);
        CUDA(cudaDeviceSynchronize());
        EXPECT(counter == 41 + 2 * round - 1, "round %d: the counter is %d", round, counter);
        counter++;
        EXPECT(values[COUNT - 1] == COUNT - 1 + 2 * round, "the last one is %d", values[COUNT - 1]);
        for (int i = 0; i < COUNT - 1; i++)
            REQUIRE(values[i] == i + 7 * round, "round %d: %d is %d", round, i, values[i]);
    }
}

static void by_calls(void)
{
    void *at = NULL;
    int copied = 0, written = 1234;
    cudaPointerAttributes said;
    CUDA(cudaGetSymbolAddress(&at, counter));
    EXPECT(at == (void *)&counter, "the symbol is at %p, and at %p here", at, (void *)&counter);
    CUDA(cudaPointerGetAttributes(&said, &counter));
    EXPECT(said.type == cudaMemoryTypeManaged, "its memory is of type %d", (int)said.type);
    counter = 5;
    CUDA(cudaMemcpyFromSymbol(&copied, counter, sizeof copied));
    EXPECT(copied == 5, "copied: %d", copied);
    CUDA(cudaMemcpyToSymbol(counter, &written, sizeof written));
    CUDA(cudaDeviceSynchronize());
    EXPECT(counter == 1234, "after a copy to it: %d", counter);
}

int main(void)
{
    initial();
    both_ways();
    by_calls();
    return finish("managed_variables");
}
