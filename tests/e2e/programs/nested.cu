/*
 * Kernels that launch kernels: from every thread, below each other, behind themselves, in streams of
 * their own with events, with shared memory, and what cannot be launched.
 */
#include "check.h"

#define THREADS 64
#define BLOCKS 4
#define DEPTH 5
#define TURNS 300

extern __global__ void leaf(int *count);

/* Every thread of a grid launches one, which counts by an atomic. */
__global__ void everyone(int *count)
{
    leaf<<<1, 2>>>(count);
}

/* A tree: each has two below it. What comes back is seen by the grid that is launched last. */
__global__ void tree(int *count, int depth)
{
    atomicAdd(count, 1);
    if (depth > 1) {
        tree<<<1, 1>>>(count, depth - 1);
        tree<<<1, 1, 0, cudaStreamFireAndForget>>>(count, depth - 1);
    }
}

__global__ void copy(int *to, const int *from)
{
    *to = *from;
}

__global__ void root(int *count, int *seen)
{
    tree<<<1, 1>>>(count, DEPTH);
    copy<<<1, 1, 0, cudaStreamTailLaunch>>>(seen, count);
}

/* It comes again behind itself. */
__global__ void again(int *count)
{
    if (++*count < TURNS)
        again<<<1, 1, 0, cudaStreamTailLaunch>>>(count);
}

struct wide {
    char name[13];
    double factor;
    int values[40];
};

__global__ void reversed(int *out, const int *in, struct wide by)
{
    extern __shared__ int room[];
    unsigned i = threadIdx.x;
    room[i] = in[i] * (int)by.factor + by.values[39];
    __syncthreads();
    out[i] = room[blockDim.x - 1 - i] + by.name[12];
}

__global__ void streams(int *out, int *between, const int *in, int *errors)
{
    cudaStream_t first, second;
    cudaEvent_t done;
    struct wide by = {"twelve chars", 2.0, {0}};
    by.values[39] = 1;
    errors[0] = cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    errors[1] = cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    errors[2] = cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    reversed<<<1, THREADS, THREADS * sizeof(int), first>>>(between, in, by);
    errors[3] = cudaEventRecord(done, first);
    errors[4] = cudaStreamWaitEvent(second, done, 0);
    reversed<<<1, THREADS, THREADS * sizeof(int), second>>>(out, between, by);
    errors[5] = cudaEventDestroy(done);
    errors[6] = cudaStreamDestroy(first);
    errors[7] = cudaStreamDestroy(second);
    errors[8] = cudaGetLastError();
}

__global__ void refused(int *count, int *errors)
{
    leaf<<<1, 2048>>>(count);
    errors[0] = cudaPeekAtLastError();
    errors[1] = cudaGetLastError();
    errors[2] = cudaGetLastError();
    leaf<<<0, 1>>>(count);
    errors[3] = cudaGetLastError();
    leaf<<<1, 1>>>(count);
    errors[4] = cudaGetLastError();
}

static int host[THREADS], *numbers;

static void fetch(int n)
{
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(host, numbers, n * sizeof *host, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(numbers, 0, THREADS * sizeof *numbers));
}

static void counts(void)
{
    everyone<<<BLOCKS, THREADS>>>(numbers);
    fetch(1);
    EXPECT(host[0] == 2 * BLOCKS * THREADS, "%d threads of children counted", host[0]);
    root<<<1, 1>>>(numbers, numbers + 1);
    fetch(2);
    EXPECT(host[0] == (1 << DEPTH) - 1 && host[1] == host[0], "a tree of %d, %d behind it", host[0],
           host[1]);
    again<<<1, 1>>>(numbers);
    fetch(1);
    EXPECT(host[0] == TURNS, "it came %d times", host[0]);
}

static void in_streams(void)
{
    int *arrays, given[THREADS];
    CUDA(cudaMalloc(&arrays, 3 * sizeof given));
    for (int i = 0; i < THREADS; i++)
        given[i] = 3 * i;
    CUDA(cudaMemcpy(arrays, given, sizeof given, cudaMemcpyHostToDevice));
    streams<<<1, 1>>>(arrays + 2 * THREADS, arrays + THREADS, arrays, numbers);
    fetch(9);
    for (int i = 0; i < 9; i++)
        EXPECT(host[i] == cudaSuccess, "call %d of a kernel: error %d", i, host[i]);
    CUDA(cudaMemcpy(given, arrays + 2 * THREADS, sizeof given, cudaMemcpyDeviceToHost));
    for (int i = 0; i < THREADS; i++)
        EXPECT(given[i] == 4 * 3 * i + 3, "value %d is %d", i, given[i]);
    CUDA(cudaFree(arrays));
}

static void not_launched(void)
{
    refused<<<1, 1>>>(numbers, numbers + 1);
    fetch(6);
    EXPECT(host[0] == 1, "%d threads ran, expected one", host[0]);
    EXPECT(host[1] != cudaSuccess && host[2] == host[1] && host[3] == cudaSuccess,
           "a block of 2048 threads: %d %d %d", host[1], host[2], host[3]);
    EXPECT(host[4] != cudaSuccess, "a grid of none: %d", host[4]);
    EXPECT(host[5] == cudaSuccess, "a launch behind: %d", host[5]);
}

int main(void)
{
    CUDA(cudaMalloc(&numbers, THREADS * sizeof *numbers));
    CUDA(cudaMemset(numbers, 0, THREADS * sizeof *numbers));
    counts();
    in_streams();
    not_launched();
    CUDA(cudaFree(numbers));
    return finish("nested");
}
