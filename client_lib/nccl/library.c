/* The library itself: its way to libcuda.so.1, texts, versions, memory, and what buffers and
 * reductions a communicator has. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "communicator.h"

static const struct gpc_communicator_table *table;
static __thread char last_line[GP_NCCL_TEXT_MAX];

static void find_table(void)
{
    static const CUuuid name = GPC_COMMUNICATOR_TABLE;
    const void *found = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    __typeof__(&cuGetExportTable) ask = NULL;
    if (library)
        ask = (__typeof__(ask))dlsym(library, "cuGetExportTable");
    if (ask && ask(&found, &name) == CUDA_SUCCESS)
        table = found;
    else
        gpc_log(GPC_LOG_ERROR, "nccl: the libcuda.so.1 of this program is not gpupool's of the same"
                               " release; do not load this libnccl.so.2 without it");
}

const struct gpc_communicator_table *gpc_nccl_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_table);
    return table;
}

/* --- errors -------------------------------------------------------------------------------- */

ncclResult_t gpc_nccl_fail(ncclResult_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_line, sizeof last_line, format, arguments);
    va_end(arguments);
    gpc_log(GPC_LOG_WARN, "nccl: %s", last_line);
    return error;
}

const char *gpc_nccl_last_line(void)
{
    return last_line;
}

ncclResult_t gpc_nccl_refuse(const char *name, const char *reason)
{
    return gpc_nccl_fail(ncclInvalidUsage, "%s is not supported: %s", name, reason);
}

ncclResult_t gpc_nccl_result(CUresult r)
{
    switch (r) {
    case CUDA_SUCCESS:
        return ncclSuccess;
    case CUDA_ERROR_SYSTEM_NOT_READY:
        return gpc_nccl_fail(ncclSystemError, "the GPU host has no NCCL");
    case CUDA_ERROR_NOT_SUPPORTED:
        return gpc_nccl_fail(ncclSystemError, "the server's release has no collectives");
    default:
        return gpc_nccl_fail(ncclUnhandledCudaError, "CUDA error %d", (int)r);
    }
}

ncclResult_t gpc_nccl_said(CUresult r, const int32_t *result)
{
    if (r != CUDA_SUCCESS)
        return gpc_nccl_result(r);
    return *result >= 0 && *result < ncclNumResults ? (ncclResult_t)*result : ncclInternalError;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static __thread char text[GP_NCCL_TEXT_MAX];
    const struct gpc_communicator_table *t = gpc_nccl_table();
    gp_communicator id = comm && gpc_nccl_check("ncclGetLastError", comm) == ncclSuccess ? comm->id
                                                                                         : NULL;
    if (t && t->last_error(id, text) == CUDA_SUCCESS && text[0])
        return text;
    return gpc_nccl_last_line();
}

void ncclResetDebugInit(void)
{
}

/* --- what needs no communicator ------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    int32_t result = ncclSuccess, got = 0;
    CUdevice device;
    if (!version)
        return gpc_nccl_fail(ncclInvalidArgument, "ncclGetVersion: NULL");
    ncclResult_t r = t ? gpc_nccl_result(t->device(&device)) : ncclSystemError;
    if (r == ncclSuccess)
        r = gpc_nccl_said(t->version(&result, &got), &result);
    if (r == ncclSuccess)
        *version = got;
    return r;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    int32_t result = ncclSuccess;
    CUdevice device;
    if (!uniqueId)
        return gpc_nccl_fail(ncclInvalidArgument, "ncclGetUniqueId: NULL");
    ncclResult_t r = t ? gpc_nccl_result(t->device(&device)) : ncclSystemError;
    if (r == ncclSuccess)
        r = gpc_nccl_said(t->unique_id(&result, (uint8_t *)uniqueId->internal), &result);
    return r;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    CUdeviceptr address = 0;
    if (!ptr || !size || !t)
        return gpc_nccl_fail(ncclInvalidArgument, "ncclMemAlloc: %zu bytes", size);
    ncclResult_t r = gpc_nccl_result(t->allocate(&address, size));
    if (r == ncclSuccess)
        *ptr = (void *)(uintptr_t)address;
    return r;
}

ncclResult_t ncclMemFree(void *ptr)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    if (!ptr)
        return ncclSuccess;
    return t ? gpc_nccl_result(t->release((CUdeviceptr)(uintptr_t)ptr)) : ncclSystemError;
}

/* --- what a communicator has ----------------------------------------------------------------- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    int32_t result = ncclSuccess;
    uint64_t number = 0;
    ncclResult_t r = gpc_nccl_check("ncclCommRegister", comm);
    if (r == ncclSuccess && (!buff || !size || !handle))
        r = gpc_nccl_fail(ncclInvalidArgument, "ncclCommRegister: nothing to register");
    if (r == ncclSuccess)
        r = gpc_nccl_said(
            gpc_nccl_table()->enlist(comm->id, (uintptr_t)buff, size, &result, &number), &result);
    if (r == ncclSuccess)
        *handle = (void *)(uintptr_t)number;
    return r;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    int32_t result = ncclSuccess;
    ncclResult_t r = gpc_nccl_check("ncclCommDeregister", comm);
    if (r == ncclSuccess)
        r = gpc_nccl_said(gpc_nccl_table()->delist(comm->id, (uintptr_t)handle, &result), &result);
    return r;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    int32_t result = ncclSuccess;
    uint64_t made = 0, value = (uintptr_t)scalar;
    uint32_t bytes = gp_nccl_type_bytes((int32_t)datatype);
    ncclResult_t r = gpc_nccl_check("ncclRedOpCreatePreMulSum", comm);
    if (r == ncclSuccess && (!op || !scalar || !bytes))
        r = gpc_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: no scalar, or no type");
    if (r != ncclSuccess)
        return r;
    if (residence == ncclScalarHostImmediate) {
        value = 0;
        memcpy(&value, scalar, bytes);
    }
    r = gpc_nccl_said(gpc_nccl_table()->operation(comm->id, value, (int32_t)datatype,
                                                  (int32_t)residence, &result, &made),
                      &result);
    if (r == ncclSuccess)
        *op = (ncclRedOp_t)made;
    return r;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    int32_t result = ncclSuccess;
    ncclResult_t r = gpc_nccl_check("ncclRedOpDestroy", comm);
    if (r == ncclSuccess)
        r = gpc_nccl_said(gpc_nccl_table()->operation_end(comm->id, (uint64_t)op, &result),
                          &result);
    return r;
}
