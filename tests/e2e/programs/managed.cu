// cudaMallocManaged as programs use it: data structures that host and kernels share by pointer.
#include "check.h"

#include <algorithm>
#include <cuda_runtime.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t cuda_result = (call);                                                          \
        REQUIRE(cuda_result == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_result));     \
    } while (0)

// A list whose nodes point to each other.
struct node {
    node *next;
    int value;
    int visits;
};

__global__ void walk(node *first, long long *sum)
{
    long long all = 0;
    for (node *n = first; n; n = n->next) {
        all += n->value;
        n->visits++;
    }
    *sum = all;
}

__global__ void reverse(int *out, const int *in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[n - 1 - i] = in[i];
}

static void list(void)
{
    const int count = 500;
    node *first = NULL;
    long long *sum, expected = 0;
    CUDA(cudaMallocManaged(&sum, sizeof *sum));
    for (int i = 0; i < count; i++) {
        node *n;
        CUDA(cudaMallocManaged(&n, sizeof *n));
        *n = node{first, i * 3, 0};
        first = n;
        expected += i * 3;
    }
    for (int round = 1; round <= 3; round++) {
        walk<<<1, 1>>>(first, sum);
        CUDA(cudaDeviceSynchronize());
        EXPECT(*sum == expected, "the sum is %lld, expected %lld", *sum, expected);
        EXPECT(first->visits == round, "visits are %d", first->visits);
        first->value++;
        expected++;
    }
    while (first) {
        node *next = first->next;
        EXPECT(first->visits == 3, "visits of the others are %d", first->visits);
        CUDA(cudaFree(first));
        first = next;
    }
    CUDA(cudaFree(sum));
}

static void sorted(void)
{
    const int n = 300000;
    int *a, *b;
    CUDA(cudaMallocManaged(&a, n * sizeof(int)));
    CUDA(cudaMallocManaged(&b, n * sizeof(int)));
    for (int i = 0; i < n; i++)
        a[i] = (int)((i * 7919LL) % n);
    reverse<<<(n + 255) / 256, 256>>>(b, a, n);
    CUDA(cudaDeviceSynchronize());
    EXPECT(b[0] == a[n - 1] && b[n - 1] == a[0], "reversed: %d, %d", b[0], b[n - 1]);
    std::sort(b, b + n); // on the host, in place
    reverse<<<(n + 255) / 256, 256>>>(a, b, n);
    CUDA(cudaDeviceSynchronize());
    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += a[i] != n - 1 - i;
    EXPECT(wrong == 0, "%d are out of order", wrong);
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
}

static void said(void)
{
    cudaPointerAttributes attributes;
    int *p, on = -1, managed = 0;
    CUDA(cudaMallocManaged(&p, 4096));
    CUDA(cudaPointerGetAttributes(&attributes, p + 1));
    EXPECT(attributes.type == cudaMemoryTypeManaged, "the type is %d", (int)attributes.type);
    EXPECT(attributes.hostPointer == p + 1 && attributes.devicePointer == p + 1, "pointers %p, %p",
           attributes.hostPointer, attributes.devicePointer);
    CUDA(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
    EXPECT(managed == 1, "cudaDevAttrManagedMemory is %d", managed);
    CUDA(cudaGetDevice(&on));
#if CUDART_VERSION >= 13000
    cudaMemLocation device = {cudaMemLocationTypeDevice, on}, host = {cudaMemLocationTypeHost, 0};
    CUDA(cudaMemAdvise(p, 4096, cudaMemAdviseSetPreferredLocation, device));
    CUDA(cudaMemPrefetchAsync(p, 4096, device, 0, 0));
    CUDA(cudaMemPrefetchAsync(p, 4096, host, 0, 0));
#else
    CUDA(cudaMemAdvise(p, 4096, cudaMemAdviseSetPreferredLocation, on));
    CUDA(cudaMemPrefetchAsync(p, 4096, on, 0));
    CUDA(cudaMemPrefetchAsync(p, 4096, cudaCpuDeviceId, 0));
#endif
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemset(p, 1, 4096));
    EXPECT(p[1023] == 0x01010101, "a set gave %x", p[1023]);
    CUDA(cudaFree(p));
}

int main()
{
    said();
    list();
    sorted();
    CUDA(cudaDeviceReset());
    return finish("managed");
}
