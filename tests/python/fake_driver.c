/*
 * A driver library with the few functions that the server's probe asks, for
 * tests of the Python side where the soft GPU has not been built.
 * FAKE_DRIVER=broken makes cuInit fail with CUDA_ERROR_NO_DEVICE.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags)
{
    const char *mode = getenv("FAKE_DRIVER");
    return flags || (mode && !strcmp(mode, "broken")) ? 100 : 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 12040;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    const char *text = getenv("GPUPOOL_SOFT_GPUS");
    *count = text ? atoi(text) : 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "fake GPU %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    const char *text = getenv("GPUPOOL_SOFT_MEMORY");
    (void)device;
    *bytes = text ? strtoull(text, NULL, 10) : 1u << 30;
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    memset(uuid, device + 1, 16);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 33 ? device + 1 : 0;
    return 0;
}
