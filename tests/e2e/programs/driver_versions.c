/*
 * What a program finds where the other side is of another release: which functions are
 * there, and what they answer all the same. One line each: `FUNCTION here|hidden RESULT`.
 */
#include "driver.h"

static const char *place(const char *name)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;

    CU(cuGetProcAddress(name, &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    REQUIRE((found != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS), "%s is at %p (%d)", name,
            found, (int)status);
    if (!found)
        REQUIRE(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "%s: %d", name, (int)status);
    return found ? "here" : "hidden";
}

static void tell(const char *name, CUresult result)
{
    printf("%s %s %s\n", name, place(name), driver_name(result));
}

int main(void)
{
    CUdeviceptr word;
    CUstream stream;
    CUgraph graph, clone = NULL;
    CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
    int version = 0;
    unsigned value = 0;

    driver_start();
    CU(cuDriverGetVersion(&version));
    printf("driver %d\n", version);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&word, 4));
    CU(cuMemsetD32Async(word, 5, 1, stream));
    tell("cuStreamWriteValue32", cuStreamWriteValue32(stream, word, 7, 0));
    CU(cuMemcpyDtoHAsync(&value, word, sizeof value, stream));
    CU(cuStreamSynchronize(stream));
    printf("value %u\n", value);
    CU(cuGraphCreate(&graph, 0));
    tell("cuGraphClone", cuGraphClone(&clone, graph));
    tell("cuCtxSetCacheConfig", cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    tell("cuCtxGetCacheConfig", cuCtxGetCacheConfig(&cache));
    tell("cuKernelGetParamInfo", CUDA_SUCCESS); /* since 12.4 */
    tell("cuMemAlloc", CUDA_SUCCESS);
    CU(cuGraphDestroy(graph));
    CU(cuMemFree(word));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return 0;
}
