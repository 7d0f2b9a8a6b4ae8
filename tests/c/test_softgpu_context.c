/* Devices and contexts of the soft GPU. */
#include "softgpu_check.h"

static void before_init(void)
{
    int n;
    CUdeviceptr p;
    CUstream stream;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 16));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuStreamCreate(&stream, 0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuDriverGetVersion(&n));
    CHECK(n == 13000);
}

static void devices(void)
{
    int n, value;
    char name[64], bus[32];
    CUuuid first, second;
    CUdevice device;
    OK(cuDeviceGetCount(&n));
    CHECK(n == 2); /* the environment says so */
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, 64, -1));
    OK(cuDeviceGetName(name, 64, 1));
    CHECK(strcmp(name, "gpupool soft GPU") == 0);
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid(&second, 1));
    CHECK(memcmp(&first, &second, sizeof(first)) != 0);
    OK(cuDeviceGetPCIBusId(bus, 32, 1));
    OK(cuDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    CHECK(value == 9);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)0, 0));
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    CHECK(value == 1);
}

static void contexts(void)
{
    CUcontext made, now, primary;
    CUdevice device;
    unsigned flags;
    int active;
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxDestroy(NULL));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active);
    OK(cuCtxSetCurrent(primary));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(primary));
    OK(cuCtxCreate(&made, NULL, 0, 1));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == made);
    OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(primary));
    OK(cuCtxEnablePeerAccess(primary, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(primary, 0));
    OK(cuCtxDestroy(made));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(made));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == primary);
    OK(cuDevicePrimaryCtxRelease(0));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    OK(cuCtxPopCurrent(&now));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&now));
}

static void look_up(void)
{
    void *function;
    const char *text;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &status));
    CHECK(function == (void *)cuMemAlloc && status == CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress("", &function, 0, 0, &status));
    CHECK(!function);
    OK(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &status));
    CHECK(!function && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorString((CUresult)12345, &text));
    CHECK(!text);
    CUexternalMemory memory;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalMemory(&memory, NULL));
}

int main(void)
{
    setenv("GPUPOOL_SOFT_GPUS", "many", 1);
    before_init();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(0));
    setenv("GPUPOOL_SOFT_GPUS", "2", 1);
    setenv("GPUPOOL_SOFT_MEMORY", "64 parsecs", 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(0));
    setenv("GPUPOOL_SOFT_MEMORY", "64MiB", 1);
    OK(cuInit(0));
    OK(cuInit(0));
    devices();
    contexts();
    look_up();
    return 0;
}
