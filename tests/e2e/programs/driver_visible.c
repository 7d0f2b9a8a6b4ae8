/*
 * Which devices a program sees (CUDA_VISIBLE_DEVICES): it prints their UUIDs, in order, and works
 * on each. Without any cuInit gives CUDA_ERROR_NO_DEVICE.
 */
#include "driver.h"

enum { MOST = 64, N = 1000 };

static void print_uuid(int device)
{
    CUuuid uuid;
    CU(cuDeviceGetUuid_v2(&uuid, device));
    printf("GPU-");
    for (int i = 0; i < 16; i++)
        printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
               (unsigned char)uuid.bytes[i]);
    printf("\n");
}

/* What is written there is there, and belongs to the device that the program calls so. */
static void work_on(int device)
{
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    CUdevice current;
    CUmemoryPool pool;
    int ordinal = -1;
    unsigned value = 0;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuCtxGetDevice(&current));
    EXPECT(current == device, "the context is of device %d, expected %d", current, device);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, N * sizeof value));
    CU(cuMemsetD32Async(memory, 100 + (unsigned)device, N, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&value, memory + (N - 1) * sizeof value, sizeof value));
    EXPECT(value == 100 + (unsigned)device, "device %d has %u", device, value);
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    EXPECT(ordinal == device, "its memory is of device %d, expected %d", ordinal, device);
    CU(cuDeviceGetDefaultMemPool(&pool, device));
    CU(cuMemFree(memory));
    CU(cuStreamDestroy(stream));
    CU(cuDevicePrimaryCtxRelease(device));
}

int main(void)
{
    int devices;
    CUdevice none;
    CUresult r = cuInit(0);
    if (r == CUDA_ERROR_NO_DEVICE || r == CUDA_ERROR_INVALID_DEVICE) {
        puts(r == CUDA_ERROR_NO_DEVICE ? "none" : "one twice");
        return 0;
    }
    REQUIRE(r == CUDA_SUCCESS, "cuInit gave %s", driver_name(r));
    CU(cuDeviceGetCount(&devices));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&none, devices));
    for (int i = 0; i < devices; i++) {
        print_uuid(i);
        work_on(i);
    }
    return finish("driver_visible");
}
