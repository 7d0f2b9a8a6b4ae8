/*
 * How long a word takes that one side writes into mapped memory while the other one polls it: one
 * line of JSON, name to microseconds.
 *
 *   visible [ROUNDS [OFFSET]]
 *
 * `both_`: the host writes a word, the kernel that waits for it answers with another word, in
 * another page, and the host polls for that. `there_` and `back_`: one way alone, so one side polls
 * and the other one sleeps between its words. Words are 1 ms apart or more, so each is by itself.
 *
 * One way is read off two clocks. OFFSET is how many nanoseconds the GPU's is before the host's;
 * without it `there_` and `back_` are told where they are one clock, as the soft GPU's is.
 * `offset_ns` is what the quickest answer says of it: natively, that is right to a microsecond.
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

enum { ROUNDS_MOST = 100000, APART = 65536, PAUSE_NS = 1000000 };

/*
 * answers: for each round it waits for `ask`, notes the time in `times`, and answers.
 * tells: each `pause` ns it notes the time in `times` and writes the round's number to `answer`.
 */
static const char kernels_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry answers(.param .u64 ask, .param .u64 answer, .param .u64 times,"
    " .param .u32 rounds)\n{\n"
    "  .reg .u64 %a<5>;\n  .reg .u32 %r<4>;\n  .reg .pred %p<3>;\n"
    "  ld.param.u64 %a1, [ask];\n  ld.param.u64 %a2, [answer];\n  ld.param.u64 %a4, [times];\n"
    "  ld.param.u32 %r1, [rounds];\n  mov.u32 %r2, 0;\n"
    "NEXT:\n  add.u32 %r2, %r2, 1;\n"
    "WAIT:\n  ld.volatile.global.u32 %r3, [%a1];\n  setp.lt.u32 %p1, %r3, %r2;\n"
    "  @%p1 bra WAIT;\n"
    "  mov.u64 %a3, %globaltimer;\n  st.global.u64 [%a4], %a3;\n  add.u64 %a4, %a4, 8;\n"
    "  st.volatile.global.u32 [%a2], %r2;\n"
    "  setp.lt.u32 %p2, %r2, %r1;\n  @%p2 bra NEXT;\n  ret;\n}\n"
    ".visible .entry tells(.param .u64 answer, .param .u64 times, .param .u32 rounds,"
    " .param .u64 pause)\n{\n"
    "  .reg .u64 %a<6>;\n  .reg .u32 %r<4>;\n  .reg .pred %p<3>;\n"
    "  ld.param.u64 %a2, [answer];\n  ld.param.u64 %a4, [times];\n"
    "  ld.param.u32 %r1, [rounds];\n  ld.param.u64 %a5, [pause];\n  mov.u32 %r2, 0;\n"
    "  mov.u64 %a1, %globaltimer;\n"
    "NEXT:\n  add.u32 %r2, %r2, 1;\n  add.u64 %a1, %a1, %a5;\n"
    "WAIT:\n  nanosleep.u32 20000;\n  mov.u64 %a3, %globaltimer;\n"
    "  setp.lt.u64 %p1, %a3, %a1;\n  @%p1 bra WAIT;\n"
    "  mov.u64 %a1, %a3;\n  st.global.u64 [%a4], %a3;\n  add.u64 %a4, %a4, 8;\n"
    "  st.volatile.global.u32 [%a2], %r2;\n"
    "  setp.lt.u32 %p2, %r2, %r1;\n  @%p2 bra NEXT;\n  ret;\n}\n";

static uint64_t wrote[ROUNDS_MOST], came[ROUNDS_MOST], gpu[ROUNDS_MOST];
static double took[ROUNDS_MOST];

/* What all three take part in. */
static struct {
    unsigned rounds;
    CUmodule module;
    CUstream stream;
    CUdeviceptr ask, answer, times;
    volatile uint32_t *asks, *answers;
} with;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_a_while(void)
{
    const struct timespec pause = {0, PAUSE_NS};
    nanosleep(&pause, NULL);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of what `took` has. */
static void figures(const char *name)
{
    unsigned n = with.rounds;
    qsort(took, n, sizeof *took, by_value);
    printf("\"%s_median_us\": %.6g, \"%s_p99_us\": %.6g", name, took[n / 2], name,
           took[(uint64_t)n * 99 / 100]);
}

static void launch(const char *name, void **parameters)
{
    CUfunction function;
    *with.asks = *with.answers = 0;
    CU(cuModuleGetFunction(&function, with.module, name));
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, with.stream, parameters, NULL));
}

static void finish(void)
{
    CU(cuStreamSynchronize(with.stream));
    CU(cuMemcpyDtoH(gpu, with.times, with.rounds * sizeof *gpu));
}

static void launch_answers(void)
{
    void *parameters[] = {&with.ask, &with.answer, &with.times, &with.rounds};
    launch("answers", parameters);
}

static void both_ways(void)
{
    launch_answers();
    for (unsigned i = 0; i < with.rounds; i++) {
        pause_a_while();
        wrote[i] = now_ns();
        *with.asks = i + 1;
        while (*with.answers <= i)
            ;
        came[i] = now_ns();
    }
    finish();
}

static void there_alone(void)
{
    launch_answers();
    for (unsigned i = 0; i < with.rounds; i++) {
        pause_a_while();
        wrote[i] = now_ns();
        *with.asks = i + 1;
    }
    finish();
}

static void back_alone(void)
{
    uint64_t pause = PAUSE_NS;
    void *parameters[] = {&with.answer, &with.times, &with.rounds, &pause};
    launch("tells", parameters);
    for (unsigned i = 0; i < with.rounds; i++) {
        while (*with.answers <= i)
            ;
        came[i] = now_ns();
    }
    finish();
}

/* Between the two host times of the quickest answer; *one_clock: it never was outside of them. */
static double offset(bool *one_clock)
{
    unsigned best = 0;
    *one_clock = true;
    for (unsigned i = 0; i < with.rounds; i++) {
        *one_clock = *one_clock && wrote[i] <= gpu[i] && gpu[i] <= came[i];
        if (came[i] - wrote[i] < came[best] - wrote[best])
            best = i;
    }
    return (double)(int64_t)(gpu[best] - wrote[best]) - (double)(came[best] - wrote[best]) / 2;
}

static void one_way(const char *name, const uint64_t *from, const uint64_t *to, double later)
{
    for (unsigned i = 0; i < with.rounds; i++)
        took[i] = ((double)(int64_t)(to[i] - from[i]) - later) / 1e3;
    printf(", ");
    figures(name);
}

static void prepare(void)
{
    CUdevice device;
    CUcontext context;
    void *pages;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&with.module, kernels_ptx));
    CU(cuStreamCreate(&with.stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&with.times, sizeof gpu));
    CU(cuMemHostAlloc(&pages, (size_t)2 * APART, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(pages, 0, (size_t)2 * APART);
    CU(cuMemHostGetDevicePointer(&with.ask, pages, 0));
    with.answer = with.ask + APART;
    with.asks = pages;
    with.answers = (volatile void *)((char *)pages + APART);
}

int main(int argc, char **argv)
{
    bool one_clock;
    with.rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    if (with.rounds == 0 || with.rounds > ROUNDS_MOST)
        return 2;
    prepare();
    both_ways();
    double found = offset(&one_clock), later = argc > 2 ? atof(argv[2]) : 0;
    for (unsigned i = 0; i < with.rounds; i++)
        took[i] = (double)(came[i] - wrote[i]) / 1e3;
    printf("{\"offset_ns\": %.0f, ", found);
    figures("both");
    if (one_clock || argc > 2) {
        there_alone();
        one_way("there", wrote, gpu, later);
        back_alone();
        one_way("back", gpu, came, -later);
    }
    puts("}");
    return 0;
}
