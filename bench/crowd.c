/*
 * Many processes that launch tiny kernels at once: one line of JSON with what they launched together.
 *
 *   crowd PROCESSES SECONDS
 *
 * Each launches 200 empty kernels and waits, again and again. They begin together, when all have their
 * contexts. Of more than one it also says how fair that was: what the slowest and the fastest did of
 * the mean, and Jain's index of all (1: all the same; 1/PROCESSES: one had everything). `_cpu_us` is
 * what a launch took of the programs' own processors. For bench/run.py, natively and through each
 * transport.
 */
#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

enum { LAUNCHES = 200, WARM = 5, MOST = 64, PATIENCE_S = 90 };

static const char nothing_ptx[] = ".version 7.0\n"
                                  ".target sm_70\n"
                                  ".address_size 64\n"
                                  ".visible .entry nothing()\n"
                                  "{\n"
                                  "    ret;\n"
                                  "}\n";

static CUfunction nothing;
static CUstream stream;

static void prepare(void)
{
    CUdevice gpu;
    CUcontext context;
    CUmodule module;
    CU(cuInit(0));
    CU(cuDeviceGet(&gpu, 0));
    CU(cuDevicePrimaryCtxRetain(&context, gpu));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, nothing_ptx));
    CU(cuModuleGetFunction(&nothing, module, "nothing"));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void launch_all(void)
{
    for (int i = 0; i < LAUNCHES; i++)
        CU(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CU(cuStreamSynchronize(stream));
}

/* What one process did. */
struct done {
    double per_second, cpu_us;
};

/* Microseconds of processors that this process has had. */
static double cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return 1e6 * (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void run(int ready, int go, int result, double seconds)
{
    char byte = 1;
    uint64_t launched = 0;
    prepare();
    for (int i = 0; i < WARM; i++)
        launch_all();
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0) /* until the parent closes it */
        exit(1);
    double begin = now(), cpu = cpu_us();
    for (; now() < begin + seconds; launched += LAUNCHES)
        launch_all();
    struct done done = {(double)launched / (now() - begin), (cpu_us() - cpu) / (double)launched};
    exit(write(result, &done, sizeof done) == sizeof done ? 0 : 1);
}

static void say(int count, const struct done *each)
{
    double sum = 0, squares = 0, cpu = 0, least = each[0].per_second, most = least;
    for (int i = 0; i < count; i++) {
        double x = each[i].per_second;
        sum += x;
        squares += x * x;
        cpu += each[i].cpu_us * x;
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    printf("{\"launches_%d_k_per_s\": %.6g, \"launches_%d_cpu_us\": %.6g", count, 1e-3 * sum, count,
           cpu / sum);
    if (count > 1)
        printf(", \"fair_%d_least\": %.6g, \"fair_%d_most\": %.6g, \"fair_%d_jain\": %.6g", count,
               least * count / sum, count, most * count / sum, count, sum * sum / squares / count);
    printf("}\n");
}

int main(int argc, char **argv)
{
    int count = argc == 3 ? atoi(argv[1]) : 0, ready[2], go[2], result[2], status, bad = 0;
    double seconds = argc == 3 ? atof(argv[2]) : 0;
    struct done each[MOST];
    char byte;
    if (count < 1 || count > MOST || seconds <= 0 || seconds > 30 || pipe(ready) || pipe(go) ||
        pipe(result)) {
        fprintf(stderr, "usage: crowd PROCESSES (1..%d) SECONDS (0..30)\n", MOST);
        return 2;
    }
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            alarm(PATIENCE_S);
            close(go[1]);
            run(ready[1], go[0], result[1], seconds);
        }
    close(ready[1]);
    close(result[1]);
    for (int i = 0; i < count; i++)
        bad |= read(ready[0], &byte, 1) != 1;
    close(go[1]);
    for (int i = 0; i < count; i++)
        bad |= read(result[0], &each[i], sizeof each[i]) != sizeof each[i];
    while (wait(&status) > 0)
        bad |= status != 0;
    if (bad) {
        fprintf(stderr, "crowd: a process failed\n");
        return 1;
    }
    say(count, each);
    return 0;
}
