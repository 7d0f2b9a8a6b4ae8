/*
 * Much is submitted behind work that only what comes later lets end: a stream that waits for a
 * value, a kernel that stays until another one tells it to go.
 */
#include "driver.h"

enum { BEHIND = 200, BESIDE = 8 };

static CUstream held, other;
static CUdeviceptr words; /* the first lets go */
static CUfunction until;

/* Nothing else is there that could tell how far the stream has come. */
static void expect_word(unsigned place, unsigned value)
{
    unsigned got = 0;
    CU(cuMemcpyDtoHAsync(&got, words + 4 * place, sizeof got, other));
    CU(cuStreamSynchronize(other));
    EXPECT(got == value, "word %u is %u, not %u", place, got, value);
}

static void stream_that_waits(void)
{
    CU(cuStreamWaitValue32(held, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    for (unsigned i = 0; i < BEHIND; i++)
        CU(cuMemsetD32Async(words + 4, i + 1, 1, held));
    expect_word(1, 0);
    CU(cuMemsetD32Async(words, 1, 1, other));
    CU(cuStreamSynchronize(held));
    expect_word(1, BEHIND);
}

static void kernel_that_stays(void)
{
    unsigned go = 7;
    void *parameters[] = {&words, &go};
    CU(cuLaunchKernel(until, 1, 1, 1, 1, 1, 1, 0, held, parameters, NULL));
    CU(cuMemsetD32Async(words + 8, 1, 1, held));
    for (unsigned i = 0; i < BESIDE; i++)
        CU(cuMemsetD32Async(words + 12, i + 1, 1, other));
    expect_word(3, BESIDE);
    expect_word(2, 0);
    CU(cuMemsetD32Async(words, go, 1, other));
    CU(cuStreamSynchronize(held));
    expect_word(2, 1);
}

int main(void)
{
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    until = driver_function(module, "wait_until");
    CU(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, 4096));
    CU(cuMemsetD8(words, 0, 4096));
    CU(cuCtxSynchronize()); /* these streams wait for nothing else */
    kernel_that_stays();
    stream_that_waits();
    driver_stop();
    return finish("driver_held");
}
