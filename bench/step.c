/*
 * A small step over and over, and how long each took: for bench/flood.py.
 *
 *   measure MILLISECONDS   steps for so long: a line of JSON with their number and percentiles
 *   end                    in order; so does the end of its input
 *
 * A step copies four bytes to the device, launches a kernel and copies four bytes back, which
 * is what waits.
 */
#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_STEPS 1000000

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_result = (call);                                                               \
        if (cu_result != CUDA_SUCCESS) {                                                           \
            printf("{\"error\": \"%s: CUDA error %d\"}\n", #call, (int)cu_result);                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char add_ptx[] = ".version 7.0\n"
                              ".target sm_70\n"
                              ".address_size 64\n"
                              ".visible .entry add(.param .u64 add_param_0)\n"
                              "{\n"
                              "    .reg .b32 %r<2>;\n"
                              "    .reg .b64 %rd<2>;\n"
                              "    ld.param.u64 %rd1, [add_param_0];\n"
                              "    ld.global.u32 %r1, [%rd1];\n"
                              "    add.s32 %r1, %r1, 1;\n"
                              "    st.global.u32 [%rd1], %r1;\n"
                              "    ret;\n"
                              "}\n";

static CUfunction add;
static CUdeviceptr number;
static double took_us[MOST_STEPS];

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void step(unsigned value)
{
    unsigned back = 0;
    void *parameters[] = {&number};
    CU(cuMemcpyHtoD(number, &value, sizeof value));
    CU(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&back, number, sizeof back));
    if (back != value + 1) {
        printf("{\"error\": \"%u came back as %u\"}\n", value, back);
        exit(1);
    }
}

static double percentile(int count, double part)
{
    int at = (int)(part * count);
    return took_us[at < count ? at : count - 1];
}

static void measure(double milliseconds)
{
    int count = 0;
    double end = now_us() + 1e3 * milliseconds;
    while (count < MOST_STEPS) {
        double begin = now_us();
        if (begin >= end && count > 0)
            break;
        step((unsigned)count);
        took_us[count++] = now_us() - begin;
    }
    qsort(took_us, (size_t)count, sizeof took_us[0], by_value);
    printf("{\"steps\": %d, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}\n", count,
           percentile(count, 0.5), percentile(count, 0.99), percentile(count, 0.999));
    fflush(stdout);
}

int main(void)
{
    char line[128];
    double milliseconds;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, add_ptx));
    CU(cuModuleGetFunction(&add, module, "add"));
    CU(cuMemAlloc(&number, sizeof(unsigned)));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0)
        if (sscanf(line, "measure %lf", &milliseconds) == 1)
            measure(milliseconds);
    return 0;
}
