/*
 * As frameworks bring their data: copies from pageable memory, each waited for, then work on
 * another stream that needs the bytes, and a result that is read.
 *
 *   uploads STEPS default|stream|shared    the waits are counted from outside
 *   uploads STEPS legacy                   behind a legacy stream that is busy, by chance longer or
 *                                          shorter than the program takes to ask
 *
 * What a synchronize promises must hold: work that is sent behind it, on any stream, finds the
 * bytes; and another process, where the memory is shared. On a blocking stream the legacy one may
 * still be busy; nothing may hang then.
 */
#include "driver.h"

#include <unistd.h>

#define BATCH ((size_t)8 << 20)
#define LABELS 4096

static CUstream copies, other, blocking;
static CUdeviceptr batch, labels, result;
static unsigned char *host_batch, *host_labels;

/* The last bytes of both, taken by a stream that knows nothing of the copies. */
static void look(unsigned char value)
{
    unsigned char got[2] = {0};

    CU(cuMemcpyDtoDAsync(result, batch + BATCH - 1, 1, other));
    CU(cuMemcpyDtoDAsync(result + 1, labels + LABELS - 1, 1, other));
    CU(cuMemcpyDtoHAsync(got, result, sizeof got, other));
    CU(cuStreamSynchronize(other));
    EXPECT(got[0] == value && got[1] == value, "step %d: %d and %d arrived", value, got[0], got[1]);
}

static void step(int number)
{
    unsigned char value = (unsigned char)(number + 1);

    memset(host_batch, value, BATCH);
    memset(host_labels, value, LABELS);
    CU(cuMemcpyHtoDAsync(batch, host_batch, BATCH, copies));
    CU(cuStreamSynchronize(copies));
    CU(cuMemcpyHtoDAsync(labels, host_labels, LABELS, copies));
    CU(cuStreamSynchronize(copies));
    look(value);
    /* settles the copies' stream, as reading a loss does */
    CU(cuMemcpyDtoHAsync(host_labels, labels, LABELS, copies));
    CU(cuStreamSynchronize(copies));
}

static void CUDA_CB wait_a_little(void *unused)
{
    (void)unused;
    usleep(20000);
}

/* The legacy stream stands at a host function, whose end is a message behind the fence. */
static void behind_the_legacy_stream(int steps)
{
    for (int i = 0; i < steps; i++) {
        CU(cuStreamSynchronize(blocking));
        CU(cuLaunchHostFunc(NULL, wait_a_little, NULL));
        CU(cuMemcpyHtoDAsync(labels, host_labels, LABELS, blocking));
        CU(cuStreamSynchronize(blocking));
        CU(cuStreamSynchronize(NULL));
    }
}

int main(int argc, char **argv)
{
    CUipcMemHandle handle;
    REQUIRE(argc == 3, "usage: uploads STEPS default|stream|shared|legacy");
    driver_start();
    if (strcmp(argv[2], "default") != 0)
        CU(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CU(cuMemAlloc(&batch, BATCH));
    CU(cuMemAlloc(&labels, LABELS));
    CU(cuMemAlloc(&result, 16));
    if (strcmp(argv[2], "shared") == 0)
        CU(cuIpcGetMemHandle(&handle, labels));
    host_batch = check_alloc(BATCH);
    host_labels = check_alloc(LABELS);
    CU(cuStreamSynchronize(copies));
    int steps = atoi(argv[1]);
    if (strcmp(argv[2], "legacy") == 0)
        behind_the_legacy_stream(steps);
    else
        for (int i = 0; i < steps; i++)
            step(i);
    driver_stop();
    return finish("uploads");
}
