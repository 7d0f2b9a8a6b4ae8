/*
 * Green contexts: a device's multiprocessors are split, and contexts made of the parts, with streams,
 * events and memory; and whoever makes resources and handles up gets an error.
 */
#include "driver.h"

#include <stdbool.h>

#define COUNT 1000

/* CUDA 13's header has it no more, its driver has. */
CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                        unsigned int flags, CUdevice dev);

static CUmodule module;
static CUfunction increment;

static unsigned sm_count(const CUdevResource *r)
{
    REQUIRE(r->type == CU_DEV_RESOURCE_TYPE_SM, "a resource is of type %d", (int)r->type);
    return r->sm.smCount;
}

/* --- resources ---------------------------------------------------------------------------- */

static unsigned whole(CUdevResource *all)
{
    CUdevResource same;
    int sms = 0;

    CU(cuDeviceGetDevResource(driver_device, all, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, driver_device));
    EXPECT(sm_count(all) == (unsigned)sms, "the device has %u of %d SMs", sm_count(all), sms);
    EXPECT(all->sm.minSmPartitionSize >= 1 && all->sm.minSmPartitionSize <= (unsigned)sms,
           "the least part has %u SMs", all->sm.minSmPartitionSize);
    CU(cuCtxGetDevResource(driver_context, &same, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(sm_count(&same) == (unsigned)sms, "the context has %u of %d SMs", sm_count(&same), sms);
    CU_GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE,
             cuDeviceGetDevResource(driver_device, &same, CU_DEV_RESOURCE_TYPE_INVALID));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDevResource(99, &same, CU_DEV_RESOURCE_TYPE_SM));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuDeviceGetDevResource(driver_device, NULL, CU_DEV_RESOURCE_TYPE_SM));
    return sm_count(all);
}

/* One group of the least size, and what is left. */
static void split(const CUdevResource *all, CUdevResource *one, CUdevResource *rest)
{
    unsigned most = 0, groups = 1, least = all->sm.minSmPartitionSize;

    CU(cuDevSmResourceSplitByCount(NULL, &most, all, NULL, 0, least));
    EXPECT(most >= 1 && most <= sm_count(all) / least, "%u groups of %u SMs fit", most, least);
    CU(cuDevSmResourceSplitByCount(one, &groups, all, rest, 0, least));
    EXPECT(groups == 1, "%u groups were made, not 1", groups);
    EXPECT(sm_count(one) >= least && sm_count(one) + sm_count(rest) <= sm_count(all),
           "%u SMs were split into %u and %u", sm_count(all), sm_count(one), sm_count(rest));
    SAY("of %u SMs one part has %u and the rest %u", sm_count(all), sm_count(one), sm_count(rest));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuDevSmResourceSplitByCount(one, NULL, all, rest, 0, least));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuDevSmResourceSplitByCount(one, &groups, NULL, rest, 0, least));
    groups = 1;
    CUresult r = cuDevSmResourceSplitByCount(one, &groups, all, rest, 0, 100000);
    EXPECT(r != CUDA_SUCCESS, "more SMs than there are were split off");
    groups = 1;
    CU(cuDevSmResourceSplitByCount(one, &groups, all, rest, 0, least));
}

static CUgreenCtx made_of(CUdevResource *resource)
{
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUdevResource has;

    CU(cuDevResourceGenerateDesc(&desc, resource, 1));
    CU(cuGreenCtxCreate(&green, desc, driver_device, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuGreenCtxGetDevResource(green, &has, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(sm_count(&has) == sm_count(resource), "a context of %u SMs has %u", sm_count(resource),
           sm_count(&has));
    CU_GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE,
             cuGreenCtxGetDevResource(green, &has, CU_DEV_RESOURCE_TYPE_INVALID));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, driver_device, 0));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuGreenCtxCreate(&green, desc, 99, 1));
    return green;
}

/* --- streams and events ------------------------------------------------------------------- */

static void add(CUdeviceptr values, CUstream stream)
{
    int n = COUNT;
    void *parameters[] = {&values, &n};
    CU(cuLaunchKernel(increment, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

static void expect(const char *where, CUdeviceptr values, int expected)
{
    int found[COUNT];
    CU(cuMemcpyDtoH(found, values, sizeof found));
    for (int i = 0; i < COUNT; i++)
        if (found[i] != expected) {
            EXPECT(false, "%s: value %d is %d, not %d", where, i, found[i], expected);
            return;
        }
}

/* A module and memory of the primary context; work goes from one green context to another. */
static void work(CUgreenCtx one, CUgreenCtx two)
{
    CUstream first, second, none;
    CUdeviceptr values;
    CUevent event;
    CUcontext context;
    CUgreenCtx green;
    CUdevice device;

    CU(cuGreenCtxStreamCreate(&first, one, CU_STREAM_NON_BLOCKING, 0));
    CU(cuGreenCtxStreamCreate(&second, two, CU_STREAM_NON_BLOCKING, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&none, one, 0, 0));
    CU(cuStreamGetGreenCtx(first, &green));
    EXPECT(green == one, "the first stream is of another green context");
    CU(cuStreamGetCtx_v2(second, &context, &green));
    EXPECT(context == driver_context && green == two, "the second stream's contexts are wrong");
    CU(cuStreamGetDevice(first, &device));
    EXPECT(device == driver_device, "the first stream is of device %d", device);

    CU(cuMemAlloc(&values, COUNT * sizeof(int)));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32(values, 5, COUNT));
    CU(cuCtxSynchronize());
    add(values, first);
    add(values, first);
    CU(cuGreenCtxRecordEvent(one, event));
    CU(cuGreenCtxWaitEvent(two, event));
    add(values, second);
    CU(cuStreamSynchronize(second));
    expect("two green contexts", values, 8);
    add(values, first);
    CU(cuCtxSynchronize()); /* the primary context's end of work is its green ones', too */
    expect("behind the primary context", values, 9);
    CU(cuEventDestroy(event));
    CU(cuMemFree(values));
    CU(cuStreamDestroy(first));
    CU(cuStreamDestroy(second));
}

/* What is made while it is current is the primary context's. */
static void current(CUgreenCtx one, CUdeviceptr *kept)
{
    CUcontext context, found;
    CUgreenCtx green;
    CUstream stream;
    CUmodule again;
    CUevent event;
    unsigned long long id = 0, other = 0;

    CU(cuCtxFromGreenCtx(&context, one));
    CU(cuCtxPushCurrent(context));
    CU(cuCtxGetCurrent(&found));
    EXPECT(found == context, "another context is current");
    CU(cuGreenCtxGetId(one, &id));
    CU(cuGreenCtxGetId(NULL, &other));
    EXPECT(id && id == other, "the current green context is %llu, not %llu", other, id);
    CU(cuStreamGetGreenCtx(NULL, &green));
    EXPECT(green == one, "the default stream is of another green context");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamGetGreenCtx(stream, &green));
    EXPECT(green == one, "a stream that was made in it is not its own");
    CU(cuMemAlloc(kept, COUNT * sizeof(int)));
    CU(cuModuleLoadData(&again, kernels_ptx));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32Async(*kept, 1, COUNT, stream));
    add(*kept, stream);
    CU(cuEventRecord(event, stream));
    CU(cuEventSynchronize(event));
    CU(cuCtxSynchronize());
    expect("in a green context", *kept, 2);
    CU(cuEventDestroy(event));
    CU(cuModuleUnload(again));
    CU(cuStreamDestroy(stream));
    CU(cuCtxPopCurrent(&found));
    CU(cuStreamGetGreenCtx(NULL, &green));
    EXPECT(green == NULL, "the primary context is green");
}

/* --- what is made up ---------------------------------------------------------------------- */

/* A driver reads what it is given, as an address as well, so these are asked of the pool alone. */
static void made_up(const CUdevResource *all, CUgreenCtx one)
{
    CUdevResource forged = *all, out[2];
    CUdevResourceDesc desc;
    CUcontext context, plain;
    CUgreenCtx green;
    unsigned groups = 1;

    memset(forged._internal_padding, 0x5a, sizeof forged._internal_padding);
    CUresult r = cuDevSmResourceSplitByCount(out, &groups, &forged, NULL, 0, 1);
    EXPECT(r != CUDA_SUCCESS, "a forged resource was split");
    EXPECT(cuDevResourceGenerateDesc(&desc, &forged, 1) != CUDA_SUCCESS,
           "a forged resource has a descriptor");
    forged = *all;
    forged.type = CU_DEV_RESOURCE_TYPE_INVALID;
    EXPECT(cuDevResourceGenerateDesc(&desc, &forged, 1) != CUDA_SUCCESS,
           "a resource of no type has a descriptor");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, NULL, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, &forged, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(NULL, &forged, 1));

    CU(cuCtxFromGreenCtx(&context, one));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context));
    CU(cuCtxCreate(&plain, NULL, 0, driver_device));
    CU(cuCtxPopCurrent(&plain));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy((CUgreenCtx)plain));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxFromGreenCtx(&context, (CUgreenCtx)plain));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxRecordEvent(NULL, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGreenCtxCreate(&green, (CUdevResourceDesc)plain, driver_device, 1));
    CU(cuCtxDestroy(plain));
}

static void affinity(void)
{
    CUexecAffinityParam p = {.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT, .param = {{1}}};
    CUctxCreateParams params = {.execAffinityParams = &p, .numExecAffinityParams = 1};
    CUcontext context;

    CUresult r = cuCtxGetExecAffinity(&p, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    printf("the current context's affinity: %s\n", driver_name(r));
    CU_GIVES(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
             cuCtxCreate(&context, &params, 0, driver_device));
    CU_GIVES(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
             cuCtxCreate_v3(&context, &p, 1, 0, driver_device));
}

int main(void)
{
    CUdevResource all, one, rest;
    CUdeviceptr kept;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    whole(&all);
    split(&all, &one, &rest);
    CUgreenCtx first = made_of(&one), second = made_of(&rest);
    EXPECT(first != second, "two green contexts are one");
    work(first, second);
    current(first, &kept);
    if (!driver_is_native())
        made_up(&all, second);
    affinity();
    CU(cuGreenCtxDestroy(first));
    expect("behind the green context", kept, 2); /* it is the primary context's */
    CU(cuMemFree(kept));
    CU(cuGreenCtxDestroy(second));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_green");
}
