// Takes memory, says `ready`, and works one step for every line that it reads: the
// failure tests kill things around it. `gone` and the error's name once CUDA fails;
// `end` (or the end of its input) ends it in order.
#include "check.h"

__global__ void increment(int *value)
{
    *value += 1;
}

static cudaError_t work(int *device, int *host)
{
    increment<<<1, 1>>>(device);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    return cudaMemcpy(host, device, sizeof *host, cudaMemcpyDeviceToHost);
}

int main(int argc, char **argv)
{
    char line[64];
    int *device, host = -1, expected = 0;
    void *ballast;

    CUDA(cudaMalloc(&ballast, (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 20));
    CUDA(cudaMalloc(&device, sizeof *device));
    CUDA(cudaMemset(device, 0, sizeof *device));
    CUDA(cudaDeviceSynchronize());
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0) {
        cudaError_t error = work(device, &host);
        if (error != cudaSuccess) {
            // Every later call fails too, at once, and none of them hangs.
            EXPECT(cudaMalloc(&ballast, 16) != cudaSuccess, "memory without a session");
            EXPECT(cudaDeviceSynchronize() != cudaSuccess, "a wait without a session");
            printf("gone %s\n", cudaGetErrorName(error));
            fflush(stdout);
            return 3;
        }
        EXPECT(host == ++expected, "the counter is %d, expected %d", host, expected);
        printf("step %d\n", host);
        fflush(stdout);
    }
    return finish("hold");
}
