// A training job's steps, counted: work on each of its GPUs, then what needs all of them, as a
// collective does: each GPU goes on when the others have come as far.
//
//   gang_steps GPUS CHUNKS START SECONDS [BLOCKS THREADS]
//
// GPUS 1 or 2; CHUNKS of about 1 us of arithmetic in each of a step's four kernels; START in
// seconds of CLOCK_MONOTONIC, 0: now. Prints one line of JSON: the steps that ended between the two
// moments, and on how many GPUs kernels are missing (0).
#include "check.h"

#include <time.h>

#define GPUS_MOST 2
#define KERNELS 4

__global__ void work(long chunks, unsigned *steps, float *out)
{
    float x = threadIdx.x;
    for (long i = 0; i < 400 * chunks; i++)
        x = x * 1.000001f + 0.5f;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        ++*steps;
    if (x == 42.0f)
        *out = x; // never, but the compiler cannot know
}

static double seconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

struct Gpu {
    cudaStream_t stream;
    cudaEvent_t came;
    unsigned *steps;
    float *out;
};

static void open(Gpu *g, int device)
{
    CUDA(cudaSetDevice(device));
    CUDA(cudaStreamCreate(&g->stream));
    CUDA(cudaEventCreateWithFlags(&g->came, cudaEventDisableTiming));
    CUDA(cudaMalloc(&g->steps, sizeof *g->steps));
    CUDA(cudaMalloc(&g->out, sizeof *g->out));
    CUDA(cudaMemset(g->steps, 0, sizeof *g->steps));
}

struct Job {
    int count;
    long chunks;
    int blocks, threads;
    Gpu gpus[GPUS_MOST];
};

static void step(Job *j, long chunks)
{
    Gpu *gpus = j->gpus;
    for (int i = 0; i < j->count; i++) {
        CUDA(cudaSetDevice(i));
        for (int k = 0; k < KERNELS; k++)
            work<<<j->blocks, j->threads, 0, gpus[i].stream>>>(chunks, gpus[i].steps, gpus[i].out);
        CUDA(cudaEventRecord(gpus[i].came, gpus[i].stream));
    }
    for (int i = 0; i < j->count; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamWaitEvent(gpus[i].stream, gpus[j->count - 1 - i].came, 0));
        work<<<1, 32, 0, gpus[i].stream>>>(1, gpus[i].steps, gpus[i].out);
    }
    for (int i = 0; i < j->count; i++)
        CUDA(cudaStreamSynchronize(gpus[i].stream));
}

// Steps until `end`, and before that two that load the kernels; those from `start` on count.
static long run(Job *j, double start, double end, long *counted)
{
    long all = 0;
    for (; all < 2; all++)
        step(j, 1);
    for (double now = 0; now < end; all++) {
        step(j, j->chunks);
        now = seconds();
        *counted += now >= start && now < end;
    }
    return all;
}

int main(int argc, char **argv)
{
    if (argc < 5 || atoi(argv[1]) < 1 || atoi(argv[1]) > GPUS_MOST) {
        fprintf(stderr, "usage: gang_steps GPUS CHUNKS START SECONDS [BLOCKS THREADS]\n");
        return 2;
    }
    Job j = {atoi(argv[1]),
             atol(argv[2]),
             argc > 6 ? atoi(argv[5]) : 264,
             argc > 6 ? atoi(argv[6]) : 256,
             {}};
    double start = atof(argv[3]) > 0 ? atof(argv[3]) : seconds(), end = start + atof(argv[4]);
    for (int i = 0; i < j.count; i++)
        open(&j.gpus[i], i);
    long counted = 0, all = run(&j, start, end, &counted);
    int wrong = 0;
    for (int i = 0; i < j.count; i++) {
        unsigned done = 0;
        CUDA(cudaSetDevice(i));
        CUDA(cudaMemcpy(&done, j.gpus[i].steps, sizeof done, cudaMemcpyDeviceToHost));
        wrong += done != (KERNELS + 1) * all;
    }
    printf("{\"steps\": %ld, \"wrong\": %d}\n", counted, wrong);
    return wrong != 0;
}
