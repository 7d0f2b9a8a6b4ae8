/*
 * A tenant that does as it is told, a line for each thing, and answers with a line:
 *
 *   take MIB     cuMemAlloc: `took MIB`, or `refused NAME` with the error
 *   give         free the last one: `gave`
 *   info         `free BYTES total BYTES`, of cuMemGetInfo
 *   total        `total BYTES`, of cuDeviceTotalMem
 *   where        `at ADDRESS`, of the counter that work adds to
 *   work N       N kernels, waited for: `worked ALL`, all since the start
 *   adrift N     the same on a stream of its own, without a current context
 *   flood N KIB  N copies of so much to the device and as many kernels, none waited for: `sent`
 *   end          in order; so does the end of its input
 *
 * `gone NAME` and status 3 once the session has failed.
 */
#include "driver.h"

#define MIB ((size_t)1 << 20)
#define ROOM 64

static CUdeviceptr taken[ROOM], counter, target;
static size_t target_bytes;
static unsigned taken_count;
static int expected;
static CUfunction increment;

static void must(CUresult r)
{
    if (r == CUDA_SUCCESS)
        return;
    SAY("gone %s", driver_name(r));
    exit(3);
}

static void take(size_t bytes)
{
    REQUIRE(taken_count < ROOM, "too many allocations");
    CUresult r = cuMemAlloc(&taken[taken_count], bytes);
    if (r != CUDA_SUCCESS) {
        SAY("refused %s", driver_name(r));
        return;
    }
    taken_count++;
    SAY("took %zu", bytes / MIB);
}

static void give(void)
{
    REQUIRE(taken_count > 0, "there is nothing to give");
    must(cuMemFree(taken[--taken_count]));
    must(cuCtxSynchronize());
    SAY("gave");
}

static void pairs(int times, size_t bytes)
{
    while (times-- > 0) {
        CUdeviceptr memory;
        must(cuMemAlloc(&memory, bytes));
        must(cuMemFree(memory));
    }
    SAY("paired");
}

static void launch(CUstream stream)
{
    int n = 1;
    void *parameters[] = {&counter, &n};
    must(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    expected++;
}

static void work(int times)
{
    int value = 0;
    while (times-- > 0)
        launch(NULL);
    must(cuMemcpyDtoH(&value, counter, sizeof value));
    EXPECT(value == expected, "the counter is %d, expected %d", value, expected);
    SAY("worked %d", value);
}

static void adrift(int times)
{
    CUstream stream;
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(cuCtxSetCurrent(NULL));
    while (times-- > 0)
        launch(stream);
    must(cuStreamSynchronize(stream));
    must(cuStreamDestroy(stream));
    must(cuCtxSetCurrent(driver_context));
    work(0);
}

static void flood(int times, size_t bytes)
{
    void *source = check_alloc(bytes);
    memset(source, 1, bytes);
    if (target_bytes < bytes) {
        must(cuMemAlloc(&target, bytes)); /* the one before stays: nothing waits here */
        target_bytes = bytes;
    }
    for (int i = 0; i < times; i++) {
        must(cuMemcpyHtoDAsync(target, source, bytes, NULL));
        launch(NULL);
    }
    SAY("sent");
    free(source);
}

static void info(void)
{
    size_t left, total;
    must(cuMemGetInfo(&left, &total));
    SAY("free %zu total %zu", left, total);
}

static void obey(const char *line)
{
    int times, kib;
    size_t total;
    if (sscanf(line, "take %d", &times) == 1) {
        take((size_t)times * MIB);
    } else if (strncmp(line, "give", 4) == 0) {
        give();
    } else if (sscanf(line, "pairs %d %d", &times, &kib) == 2) {
        pairs(times, (size_t)kib * 1024);
    } else if (strncmp(line, "info", 4) == 0) {
        info();
    } else if (strncmp(line, "total", 5) == 0) {
        must(cuDeviceTotalMem(&total, driver_device));
        SAY("total %zu", total);
    } else if (strncmp(line, "where", 5) == 0) {
        SAY("at %llx", (unsigned long long)counter);
    } else if (sscanf(line, "work %d", &times) == 1) {
        work(times);
    } else if (sscanf(line, "adrift %d", &times) == 1) {
        adrift(times);
    } else if (sscanf(line, "flood %d %d", &times, &kib) == 2) {
        flood(times, (size_t)kib * 1024);
    } else {
        REQUIRE(0, "no such thing: %s", line);
    }
}

int main(void)
{
    char line[128];
    CUmodule module;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    CU(cuMemAlloc(&counter, sizeof(int)));
    SAY("ready");
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0)
        obey(line);
    driver_stop();
    return finish("driver_tenant");
}
