/*
 * How long a word takes that one side writes into mapped memory while the other one polls it: one
 * line of JSON, name to microseconds.
 *
 *   visible [ROUNDS]
 *
 * In each round the host writes a word, the kernel that waits for it notes the time and answers
 * with another word, in another page, and the host polls for that. Between rounds it pauses, so each
 * is by itself. `there_` and `back_` are the two ways, where the GPU's clock is the host's (the soft
 * GPU's is), and `both_` is one behind the other.
 */
#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_result = (call);                                                               \
        if (cu_result != CUDA_SUCCESS) {                                                           \
            const char *cu_name = NULL;                                                            \
            (void)cuGetErrorName(cu_result, &cu_name);                                             \
            fprintf(stderr, "visible.c:%d: %s: %s\n", __LINE__, #call,                             \
                    cu_name ? cu_name : "unknown error");                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { ROUNDS_MOST = 100000, APART = 65536, PAUSE_NS = 300000 };

/* For each round it waits for `ask`, notes the time, and answers. */
static const char answers_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry answers(.param .u64 ask, .param .u64 seen, .param .u32 rounds)\n{\n"
    "  .reg .u64 %a<4>;\n  .reg .u32 %r<4>;\n  .reg .pred %p<3>;\n"
    "  ld.param.u64 %a1, [ask];\n  ld.param.u64 %a2, [seen];\n  ld.param.u32 %r1, [rounds];\n"
    "  mov.u32 %r2, 0;\n"
    "NEXT:\n  add.u32 %r2, %r2, 1;\n"
    "WAIT:\n  ld.volatile.global.u32 %r3, [%a1];\n  setp.lt.u32 %p1, %r3, %r2;\n"
    "  @%p1 bra WAIT;\n"
    "  mov.u64 %a3, %globaltimer;\n"
    "  st.volatile.global.u64 [%a2], %a3;\n  membar.sys;\n"
    "  st.volatile.global.u32 [%a2+8], %r2;\n"
    "  setp.lt.u32 %p2, %r2, %r1;\n  @%p2 bra NEXT;\n  ret;\n}\n";

static struct {
    double there[ROUNDS_MOST], back[ROUNDS_MOST], both[ROUNDS_MOST];
    bool one_clock;
} took = {.one_clock = true};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void one_round(volatile char *pages, unsigned i)
{
    volatile uint32_t *ask = (volatile void *)pages, *answer = (volatile void *)(pages + APART + 8);
    const struct timespec pause = {0, PAUSE_NS};
    nanosleep(&pause, NULL);
    uint64_t written = now_ns();
    *ask = i;
    while (*answer < i)
        ;
    uint64_t came = now_ns(), seen = *(volatile uint64_t *)(volatile void *)(pages + APART);
    took.one_clock &= written <= seen && seen <= came;
    took.there[i - 1] = (double)(seen - written) / 1e3;
    took.back[i - 1] = (double)(came - seen) / 1e3;
    took.both[i - 1] = (double)(came - written) / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void figures(const char *name, double *times, unsigned n)
{
    qsort(times, n, sizeof *times, by_value);
    printf("\"%s_median_us\": %.6g, \"%s_p99_us\": %.6g", name, times[n / 2], name,
           times[(uint64_t)n * 99 / 100]);
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction answers;
    CUstream stream;
    CUdeviceptr ask;
    void *pages;
    if (rounds == 0 || rounds > ROUNDS_MOST)
        return 2;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, answers_ptx));
    CU(cuModuleGetFunction(&answers, module, "answers"));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemHostAlloc(&pages, (size_t)2 * APART, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(pages, 0, (size_t)2 * APART);
    CU(cuMemHostGetDevicePointer(&ask, pages, 0));
    CUdeviceptr seen = ask + APART;
    void *parameters[] = {&ask, &seen, &rounds};
    CU(cuLaunchKernel(answers, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    for (unsigned i = 1; i <= rounds; i++)
        one_round(pages, i);
    CU(cuStreamSynchronize(stream));
    printf("{");
    if (took.one_clock) {
        figures("there", took.there, rounds);
        printf(", ");
        figures("back", took.back, rounds);
        printf(", ");
    }
    figures("both", took.both, rounds);
    puts("}");
    CU(cuMemFreeHost(pages));
    return 0;
}
