/* Copies of one-dimensional arrays: boxes of one row. */
#include "softgpu.h"

static CUDA_MEMCPY3D row(size_t bytes)
{
    return (CUDA_MEMCPY3D){.WidthInBytes = bytes, .Height = 1, .Depth = 1};
}

static void from_array(CUDA_MEMCPY3D *copy, CUarray array, size_t offset)
{
    copy->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->srcArray = array;
    copy->srcXInBytes = offset;
}

static void to_array(CUDA_MEMCPY3D *copy, CUarray array, size_t offset)
{
    copy->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->dstArray = array;
    copy->dstXInBytes = offset;
}

static CUDA_MEMCPY3D host_to_array(CUarray to, size_t offset, const void *from, size_t bytes)
{
    CUDA_MEMCPY3D copy = row(bytes);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    to_array(&copy, to, offset);
    return copy;
}

static CUDA_MEMCPY3D array_to_host(void *to, CUarray from, size_t offset, size_t bytes)
{
    CUDA_MEMCPY3D copy = row(bytes);
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    from_array(&copy, from, offset);
    return copy;
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    CUDA_MEMCPY3D copy = host_to_array(dstArray, dstOffset, srcHost, ByteCount);
    return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                              size_t ByteCount, CUstream hStream)
{
    CUDA_MEMCPY3D copy = host_to_array(dstArray, dstOffset, srcHost, ByteCount);
    return cuMemcpy3DAsync_v2(&copy, hStream);
}

CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    CUDA_MEMCPY3D copy = array_to_host(dstHost, srcArray, srcOffset, ByteCount);
    return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream)
{
    CUDA_MEMCPY3D copy = array_to_host(dstHost, srcArray, srcOffset, ByteCount);
    return cuMemcpy3DAsync_v2(&copy, hStream);
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                         size_t ByteCount)
{
    CUDA_MEMCPY3D copy = row(ByteCount);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = srcDevice;
    to_array(&copy, dstArray, dstOffset);
    return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount)
{
    CUDA_MEMCPY3D copy = row(ByteCount);
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = dstDevice;
    from_array(&copy, srcArray, srcOffset);
    return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount)
{
    CUDA_MEMCPY3D copy = row(ByteCount);
    to_array(&copy, dstArray, dstOffset);
    from_array(&copy, srcArray, srcOffset);
    return cuMemcpy3D_v2(&copy);
}
