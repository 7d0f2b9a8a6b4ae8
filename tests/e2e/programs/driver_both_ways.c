/*
 * More than any connection holds, both ways at once, from a thread that waits for nothing
 * meanwhile: what comes must be received while what goes is blocked.
 */
#include "driver.h"

#define BYTES ((size_t)96 << 20)
#define WORDS (BYTES / sizeof(unsigned))

static unsigned *pinned(unsigned seed)
{
    void *words;
    CU(cuMemHostAlloc(&words, BYTES, 0));
    for (size_t i = 0; i < WORDS; i++)
        ((unsigned *)words)[i] = (unsigned)i * 2654435761u + seed;
    return words;
}

static CUdeviceptr device(const unsigned *words)
{
    CUdeviceptr to;
    CU(cuMemAlloc(&to, BYTES));
    CU(cuMemcpyHtoD(to, words, BYTES));
    return to;
}

int main(void)
{
    CUstream up, down;

    driver_start();
    unsigned *goes = pinned(1), *comes = pinned(2), *check = pinned(2);
    CUdeviceptr to = device(check), from = device(check);
    CU(cuStreamCreate(&up, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&down, CU_STREAM_NON_BLOCKING));
    memset(comes, 0, BYTES);
    for (int i = 0; i < 2; i++) {
        CU(cuMemcpyDtoHAsync(comes, from, BYTES, down));
        CU(cuMemcpyHtoDAsync(to, goes, BYTES, up));
        CU(cuMemcpyDtoHAsync(comes, from, BYTES, down));
    }
    CU(cuCtxSynchronize());
    REQUIRE(memcmp(comes, check, BYTES) == 0, "what came is not what was there");
    CU(cuMemcpyDtoH(comes, to, BYTES));
    REQUIRE(memcmp(comes, goes, BYTES) == 0, "what went did not arrive");
    driver_stop();
    return finish("driver_both_ways");
}
