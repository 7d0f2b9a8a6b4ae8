// Eight threads, each with its own streams and buffers, and the default stream between.
// Built a second time with per-thread default streams.
#include "check.h"

#include <pthread.h>

enum { THREADS = 8, ROUNDS = 12, COUNT = 1024 };

__global__ void step(int *values, int n, int factor, int term)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * factor + term;
}

static void *work(void *argument)
{
    int id = (int)(size_t)argument;
    int *device, *pinned, *plain = (int *)check_alloc(COUNT * sizeof(int));
    cudaStream_t stream;
    cudaEvent_t event;

    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaMallocHost(&pinned, COUNT * sizeof(int)));
    for (int round = 0; round < ROUNDS; round++) {
        // Odd rounds use the default stream (the thread's own in the second build).
        cudaStream_t use = round % 2 ? 0 : stream;
        CUDA(cudaMalloc(&device, COUNT * sizeof(int)));
        for (int i = 0; i < COUNT; i++)
            pinned[i] = id * 1000 + i;
        CUDA(cudaMemcpyAsync(device, pinned, COUNT * sizeof(int), cudaMemcpyHostToDevice, use));
        for (int k = 0; k < 3; k++)
            step<<<COUNT / 128, 128, 0, use>>>(device, COUNT, 3, id + k);
        CUDA(cudaGetLastError());
        CUDA(cudaEventRecord(event, use));
        CUDA(cudaEventSynchronize(event));
        CUDA(cudaMemcpy(plain, device, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
        for (int i = 0; i < COUNT; i++) {
            int expected = id * 1000 + i;
            for (int k = 0; k < 3; k++)
                expected = expected * 3 + id + k;
            EXPECT(plain[i] == expected, "thread %d, round %d: value %d is %d, expected %d", id, round,
                   i, plain[i], expected);
        }
        CUDA(cudaFree(device));
    }
    // An error of this thread is this thread's: the runtime keeps it apart.
    if (id == 3)
        CUDA_GIVES(cudaErrorInvalidValue, cudaMemcpy(plain, NULL, 4, cudaMemcpyDeviceToHost));
    CUDA_GIVES(id == 3 ? cudaErrorInvalidValue : cudaSuccess, cudaGetLastError());
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
    free(plain);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CUDA(cudaDeviceSynchronize());
    return finish("threads");
}
