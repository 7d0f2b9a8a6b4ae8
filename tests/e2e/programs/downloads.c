/*
 * Bytes of the device, read into pageable memory.
 *
 *   downloads rows N      a two-dimensional copy of N rows
 *   downloads threads N   N threads, each several long copies
 *
 * Many rows are waited for once. Threads that all wait for their bytes must not wait for each
 * other: each has several pieces of its copy under way, and there is room for so many.
 */
#include "driver.h"

#include <pthread.h>

#define WIDTH 96
#define PITCH 128
#define LONG ((size_t)16 << 20)
#define TIMES 4
#define THREADS_MOST 32

static unsigned char value_of(size_t row)
{
    return (unsigned char)(row * 7 + 1);
}

static void read_rows(size_t rows)
{
    CUdeviceptr device;
    unsigned char *host = check_alloc(rows * WIDTH);
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcPitch = PITCH,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = host,
                          .dstPitch = WIDTH,
                          .WidthInBytes = WIDTH,
                          .Height = rows};

    CU(cuMemAlloc(&device, rows * PITCH));
    copy.srcDevice = device;
    for (size_t row = 0; row < rows; row++)
        CU(cuMemsetD8(device + row * PITCH, value_of(row), WIDTH));
    CU(cuMemcpy2D(&copy));
    for (size_t i = 0; i < rows * WIDTH; i++)
        REQUIRE(host[i] == value_of(i / WIDTH), "byte %zu of row %zu is %d", i % WIDTH, i / WIDTH,
                host[i]);
    CU(cuMemFree(device));
    free(host);
}

static void *read_long(void *arg)
{
    unsigned char value = value_of((size_t)arg), *host = check_alloc(LONG);
    CUdeviceptr device;

    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemAlloc(&device, LONG));
    CU(cuMemsetD8(device, value, LONG));
    for (int i = 0; i < TIMES; i++) {
        memset(host, 0, LONG);
        CU(cuMemcpyDtoH(host, device, LONG));
        for (size_t at = 0; at < LONG; at += 4093)
            REQUIRE(host[at] == value, "byte %zu is %d, not %d", at, host[at], value);
    }
    CU(cuMemFree(device));
    free(host);
    return NULL;
}

static void read_from_threads(size_t count)
{
    pthread_t threads[THREADS_MOST];

    REQUIRE(count <= THREADS_MOST, "at most %d threads", THREADS_MOST);
    for (size_t i = 0; i < count; i++)
        REQUIRE(pthread_create(&threads[i], NULL, read_long, (void *)i) == 0, "no thread");
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3, "usage: downloads rows|threads N");
    driver_start();
    if (strcmp(argv[1], "rows") == 0)
        read_rows((size_t)atoi(argv[2]));
    else
        read_from_threads((size_t)atoi(argv[2]));
    driver_stop();
    return finish("downloads");
}
