/* Device attributes, occupancy queries, and what an opt-in to more shared memory changes. */
#include "driver.h"

static int attribute(CUdevice_attribute which)
{
    int value = -1;
    CU(cuDeviceGetAttribute(&value, which, driver_device));
    return value;
}

static size_t no_shared(int block)
{
    (void)block;
    return 0;
}

static void shared_opt_in(CUfunction function)
{
    int limit = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    int opt_in = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    CUdeviceptr device;
    void *parameters[] = {&device, &device};
    int value = 0, out = 0;

    EXPECT(opt_in > limit && limit >= 48 * 1024, "shared memory: %d, with opt-in %d", limit,
           opt_in);
    CU(cuMemAlloc(&device, 1024));
    CU(cuMemsetD32(device, 2, 256));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, opt_in, NULL, parameters, NULL));
    CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, opt_in));
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    EXPECT(value == opt_in, "the limit is %d, expected %d", value, opt_in);
    CU(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, opt_in, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&out, device, sizeof out));
    EXPECT(out == 128, "the sum in shared memory is %d, expected 128", out);
    CU_GIVES(
        CUDA_ERROR_INVALID_VALUE,
        cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, opt_in + 1));
    CU(cuMemFree(device));
}

int main(void)
{
    CUmodule module;
    CUfunction function;
    int blocks = -1, grid = 0, block = 0, count = 0, version = 0;
    size_t dynamic = 0, total = 0;
    char name[256] = "", bus[32] = "";
    CUuuid uuid;
    CUdevice again;

    driver_start();
    CU(cuDriverGetVersion(&version));
    CU(cuDeviceGetCount(&count));
    CU(cuDeviceGetName(name, sizeof name, driver_device));
    CU(cuDeviceTotalMem(&total, driver_device));
    CU(cuDeviceGetUuid(&uuid, driver_device));
    CU(cuDeviceGetPCIBusId(bus, sizeof bus, driver_device));
    CU(cuDeviceGetByPCIBusId(&again, bus));
    EXPECT(again == driver_device, "bus %s is device %d", bus, again);
    EXPECT(version >= 12000 && count > 0 && name[0] && total >= (64u << 20),
           "driver %d, %d devices, '%s', %zu bytes", version, count, name, total);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE) == 32, "the warp size is not 32");
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) == 1024,
           "not 1,024 threads a block");
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1, "no unified addressing");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&count, (CUdevice_attribute)9999, 0));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&again, 1000));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&again, -1));

    CU(cuModuleLoadData(&module, kernels_ptx));
    function = driver_function(module, "add");
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
    EXPECT(blocks >= 1 &&
               blocks * 256 <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
           "%d blocks of 256 on a multiprocessor", blocks);
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 1024, 0, 0));
    EXPECT(blocks >= 1, "%d blocks of 1,024 on a multiprocessor", blocks);
    CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, no_shared, 0, 0));
    EXPECT(grid >= 1 && block >= 32 && block <= 1024 && block % 32 == 0,
           "the best launch is %d of %d", grid, block);
    CU(cuOccupancyAvailableDynamicSMemPerBlock(&dynamic, function, 1, 256));
    EXPECT(dynamic >= 16 * 1024, "one block may have %zu bytes", dynamic);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, function, 256, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0));
    shared_opt_in(driver_function(module, "shared_sum"));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_occupancy");
}
