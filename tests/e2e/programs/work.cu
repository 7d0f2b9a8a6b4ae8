// Work of a known kind, counted where it is done: kernels that count their own progress
// between two moments of the GPU's clock, so that programs that share a GPU can be
// compared to the chunk, whatever the length of their kernels.
//
//   work CHUNKS START SECONDS [per-step [think-us]]
//
// CHUNKS of about 1 us of arithmetic in each kernel; START in seconds of CLOCK_MONOTONIC,
// 0: now; with per-step it waits after so many kernels, and think-us before the next.
// Prints one line of JSON: chunks done, kernels, steps and how long they took (us).
#include "check.h"

#include <time.h>

#include <algorithm>
#include <vector>

__global__ void work(long chunks, unsigned long long start, unsigned long long end,
                     unsigned long long *done, float *out)
{
    float x = threadIdx.x;
    for (long chunk = 0; chunk < chunks; chunk++) {
        for (int i = 0; i < 400; i++)
            x = x * 1.000001f + 0.5f;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            unsigned long long now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            if (now >= start && now < end)
                ++*(volatile unsigned long long *)done;
        }
    }
    if (x == 42.0f)
        *out = x; // never, but the compiler cannot know
}

__global__ void read_clock(unsigned long long *now)
{
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*now));
}

static double seconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// What the GPU's clock shows at a moment of the host's.
static unsigned long long gpu_time(double at, unsigned long long *device)
{
    unsigned long long shown = 0;
    double before = 0, after = 1e9, first = seconds();
    for (int i = 0; i < 20 && seconds() < first + 2; i++) {
        unsigned long long now;
        double began = seconds();
        read_clock<<<1, 1>>>(device);
        CUDA(cudaMemcpy(&now, device, sizeof now, cudaMemcpyDeviceToHost));
        double ended = seconds();
        if (ended - began < after - before) {
            before = began;
            after = ended;
            shown = now;
        }
    }
    return shown + (long long)((at - (before + after) / 2) * 1e9);
}

struct Steps {
    std::vector<double> us;
    double percentile(double p)
    {
        if (us.empty())
            return 0;
        std::sort(us.begin(), us.end());
        return us[std::min(us.size() - 1, (size_t)(p * us.size()))];
    }
};

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: work CHUNKS START SECONDS [per-step [think-us]]\n");
        return 2;
    }
    long chunks = atol(argv[1]);
    double start = atof(argv[2]), length = atof(argv[3]);
    int per_step = argc > 4 ? atoi(argv[4]) : 0, think = argc > 5 ? atoi(argv[5]) : 0;
    unsigned long long *done, *clock_now, total = 0;
    float *out;
    CUDA(cudaMalloc(&done, sizeof *done));
    CUDA(cudaMalloc(&clock_now, sizeof *clock_now));
    CUDA(cudaMalloc(&out, sizeof *out));
    CUDA(cudaMemset(done, 0, sizeof *done));
    work<<<1, 32>>>(1, 0, 0, done, out); // loaded before it counts
    CUDA(cudaDeviceSynchronize());
    if (start == 0)
        start = seconds() + 0.2;
    unsigned long long from = gpu_time(start, clock_now);
    unsigned long long until = from + (unsigned long long)(length * 1e9);

    // Enough ahead that the GPU never waits for us, and not more than half a second.
    long ahead = per_step ? per_step : std::max(2l, std::min(256l, 500000 / std::max(chunks, 1l)));
    cudaEvent_t passed[2];
    for (cudaEvent_t &event : passed)
        CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Steps steps;
    long kernels = 0;
    for (long batch = 0; seconds() < start + length + 0.05; batch++) {
        double began = seconds();
        long count = per_step ? per_step : (ahead + 1) / 2;
        for (long i = 0; i < count; i++, kernels++)
            work<<<264, 256>>>(chunks, from, until, done, out);
        CUDA(cudaEventRecord(passed[batch % 2]));
        if (per_step || batch > 0)
            CUDA(cudaEventSynchronize(passed[per_step ? batch % 2 : (batch + 1) % 2]));
        if (per_step && began >= start && began < start + length)
            steps.us.push_back((seconds() - began) * 1e6);
        if (think) {
            timespec pause = {think / 1000000, think % 1000000 * 1000l};
            nanosleep(&pause, nullptr);
        }
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&total, done, sizeof total, cudaMemcpyDeviceToHost));
    printf("{\"chunks\": %llu, \"kernels\": %ld, \"steps\": %zu, \"p50\": %.1f, \"p99\": %.1f, "
           "\"worst\": %.1f}\n", total, kernels, steps.us.size(), steps.percentile(0.5),
           steps.percentile(0.99), steps.percentile(1.0));
    return 0;
}
