#include "null_gpu.h"

#include <stdio.h>
#include <stdlib.h>

#define NULL_NAME(name) #name,
const char *const null_call_names[NULL_CALLS_COUNT] = {NULL_CALLS(NULL_NAME)};

#define EVENTS 256 /* of which NULL_OBJECT is the client's */
#define LAG 2      /* how many are recorded before one passes on a GPU that is behind */

struct null_gpu null_gpu;
static uint64_t records, recorded[EVENTS], events;

void null_must(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "null_driver: %s\n", what);
    abort();
}

#define COUNT(name) null_gpu.counts.calls[NULL_##name]++

static CUresult null_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **parameters, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)parameters, (void)extra;
    COUNT(cuLaunchKernel);
    return CUDA_SUCCESS;
}

static CUresult null_event_record(CUevent event, CUstream stream)
{
    (void)stream;
    COUNT(cuEventRecord);
    recorded[(uintptr_t)event % EVENTS] = ++records;
    return CUDA_SUCCESS;
}

static CUresult null_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    COUNT(cuStreamWaitEvent);
    return CUDA_SUCCESS;
}

static CUresult null_set(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    (void)at, (void)value, (void)bytes, (void)stream;
    COUNT(cuMemsetD8Async);
    return CUDA_SUCCESS;
}

static CUresult null_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    COUNT(cuMemcpyAsync);
    return CUDA_SUCCESS;
}

static CUresult null_read(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    COUNT(cuMemcpyDtoHAsync);
    return CUDA_SUCCESS;
}

static CUresult null_pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr at)
{
    (void)data, (void)attribute, (void)at;
    COUNT(cuPointerGetAttribute);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult null_event_query(CUevent event)
{
    COUNT(cuEventQuery);
    bool passed = records - recorded[(uintptr_t)event % EVENTS] >= (null_gpu.behind ? LAG : 0);
    return passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult null_event_synchronize(CUevent event)
{
    (void)event;
    COUNT(cuEventSynchronize);
    return CUDA_SUCCESS;
}

static CUresult null_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    COUNT(cuEventCreate);
    *event = (CUevent)(uintptr_t)++events;
    null_must(events < NULL_OBJECT, "events are not used again");
    return CUDA_SUCCESS;
}

static CUresult null_event_destroy(CUevent event)
{
    (void)event;
    COUNT(cuEventDestroy_v2);
    return CUDA_SUCCESS;
}

static CUresult null_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    COUNT(cuStreamIsCapturing);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult null_stream_query(CUstream stream)
{
    (void)stream;
    COUNT(cuStreamQuery);
    return CUDA_SUCCESS;
}

static CUresult null_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    (void)stream, (void)flags;
    COUNT(cuStreamWriteValue64);
    null_must(at >= (uintptr_t)null_gpu.page && at < (uintptr_t)null_gpu.page + GP_COMPLETION_DATA,
              "a word of the page");
    null_gpu.due.to = (uint64_t *)(uintptr_t)at;
    null_gpu.due.value = value;
    return CUDA_SUCCESS;
}

static CUresult null_register(void *at, size_t bytes, unsigned flags)
{
    (void)at, (void)bytes, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult null_device_pointer(CUdeviceptr *device, void *at, unsigned flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult null_get_current(CUcontext *context)
{
    COUNT(cuCtxGetCurrent);
    *context = NULL_CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult null_set_current(CUcontext context)
{
    (void)context;
    COUNT(cuCtxSetCurrent);
    return CUDA_SUCCESS;
}

static CUresult null_get_device(CUdevice *device)
{
    COUNT(cuCtxGetDevice);
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult null_stream_context(CUstream stream, CUcontext *context)
{
    (void)stream;
    COUNT(cuStreamGetCtx);
    *context = NULL_CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult null_parameter(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    (void)f;
    if (index >= NULL_PARAMETERS)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = index * sizeof(uint64_t);
    *size = sizeof(uint64_t);
    return CUDA_SUCCESS;
}

static CUresult null_attribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    (void)attribute, (void)f;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult null_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)attribute, (void)device;
    *value = 1;
    return CUDA_SUCCESS;
}

static CUresult null_reserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr want,
                             unsigned long long flags)
{
    (void)bytes, (void)align, (void)flags;
    *at = want;
    return CUDA_SUCCESS;
}

static CUresult null_mem_create(CUmemGenericAllocationHandle *pages, size_t bytes,
                                const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    COUNT(cuMemCreate);
    *pages = NULL_OBJECT;
    return CUDA_SUCCESS;
}

static CUresult null_mem_release(CUmemGenericAllocationHandle pages)
{
    (void)pages;
    COUNT(cuMemRelease);
    return CUDA_SUCCESS;
}

static CUresult null_mem_map(CUdeviceptr at, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle pages, unsigned long long flags)
{
    (void)at, (void)bytes, (void)offset, (void)pages, (void)flags;
    COUNT(cuMemMap);
    return CUDA_SUCCESS;
}

static CUresult null_mem_unmap(CUdeviceptr at, size_t bytes)
{
    (void)at, (void)bytes;
    COUNT(cuMemUnmap);
    return CUDA_SUCCESS;
}

static CUresult null_mem_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who,
                                size_t count)
{
    (void)at, (void)bytes, (void)who, (void)count;
    COUNT(cuMemSetAccess);
    return CUDA_SUCCESS;
}

static CUresult null_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

struct gpw_driver null_gpu_driver = {
    .cuLaunchKernel = null_launch,
    .cuEventRecord = null_event_record,
    .cuStreamWaitEvent = null_stream_wait,
    .cuMemsetD8Async = null_set,
    .cuMemcpyDtoDAsync_v2 = null_copy,
    .cuMemcpyDtoHAsync_v2 = null_read,
    .cuPointerGetAttribute = null_pointer_attribute,
    .cuEventQuery = null_event_query,
    .cuEventSynchronize = null_event_synchronize,
    .cuEventCreate = null_event_create,
    .cuEventDestroy_v2 = null_event_destroy,
    .cuStreamIsCapturing = null_capturing,
    .cuStreamQuery = null_stream_query,
    .cuStreamWriteValue64_v2 = null_write,
    .cuMemHostRegister_v2 = null_register,
    .cuMemHostGetDevicePointer_v2 = null_device_pointer,
    .cuCtxGetCurrent = null_get_current,
    .cuCtxSetCurrent = null_set_current,
    .cuCtxGetDevice = null_get_device,
    .cuStreamGetCtx = null_stream_context,
    .cuFuncGetParamInfo = null_parameter,
    .cuFuncGetAttribute = null_attribute,
    .cuDeviceGetAttribute = null_device_attribute,
    .cuMemAddressReserve = null_reserve,
    .cuMemCreate = null_mem_create,
    .cuMemRelease = null_mem_release,
    .cuMemMap = null_mem_map,
    .cuMemUnmap = null_mem_unmap,
    .cuMemSetAccess = null_mem_access,
    .cuThreadExchangeStreamCaptureMode = null_mode,
};
