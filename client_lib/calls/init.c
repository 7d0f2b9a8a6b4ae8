/* Versions, error texts, and how the runtime finds our functions. */
#include <string.h>

#include "activity_table.h"
#include "call.h"
#include "communicator_table.h"
#include "context.h"
#include "export.h"
#include "gp_errors.h"
#include "gpc_stubs.h"
#include "operations_there.h"
#include "private_tables.h"
#include "proc_address.h"
#include "session.h"

/* What cuda.h and the tables were made for; the snapshot may say less. */
#define BUILT_FOR 13000

int gpc_driver_version(void)
{
    /* a program of several hosts may use what all of them know */
    uint32_t version = BUILT_FOR;
    for (unsigned i = 0; i < gpc_session_count(); i++) {
        uint32_t one = gpc_session_at(i)->snapshot->driver_version;
        if (one && one < version)
            version = one;
    }
    return (int)version;
}

GPC_EXPORT CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    gpc_count(GP_OP_cuGetErrorName);
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)error) {
#define NAME(name, value, text)                                                                    \
    case value:                                                                                    \
        *pStr = #name;                                                                             \
        return CUDA_SUCCESS;
        GP_ERRORS(NAME)
#undef NAME
    }
    *pStr = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

GPC_EXPORT CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    gpc_count(GP_OP_cuGetErrorString);
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)error) {
#define TEXT(name, value, text)                                                                    \
    case value:                                                                                    \
        *pStr = text;                                                                              \
        return CUDA_SUCCESS;
        GP_ERRORS(TEXT)
#undef TEXT
    }
    *pStr = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* First row of this name, or gpc_proc_count. */
static size_t proc_first(const char *name)
{
    size_t low = 0, high = gpc_proc_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(gpc_proc_table[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The function that `name` meant in CUDA `version`, as the oldest driver of the hosts knows it.
 * *too_new: it came later. What a host's release of gpupool lacks is not there: programs ask for
 * what they can do without. */
static void *proc_find(const char *name, int version, bool per_thread, bool *too_new)
{
    const struct gpc_proc *plain = NULL, *special = NULL;
    const int driver = gpc_driver_version();
    *too_new = false;
    for (size_t i = proc_first(name);
         i < gpc_proc_count && strcmp(gpc_proc_table[i].name, name) == 0; i++) {
        const struct gpc_proc *p = &gpc_proc_table[i];
        if (p->version > driver) {
            continue;
        } else if (p->version > version) {
            *too_new = true;
        } else if (p->per_thread && !special) {
            special = p;
        } else if (!p->per_thread && !plain) {
            plain = p;
        }
    }
    const struct gpc_proc *found = per_thread && special ? special : plain;
    if (!found)
        return NULL;
    *too_new = false;
    return gpc_sessions_have(found->op) ? found->function : NULL;
}

static CUresult proc_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    if (!symbol || !pfn)
        return CUDA_ERROR_INVALID_VALUE;
    const cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    if (*symbol == '\0' && version == 0) { /* libcudart asks; the answer must be this */
        *pfn = NULL;
        if (status)
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    bool too_new;
    /* "cuGetProcAddress" has five arguments from 12.0 on: the table knows */
    *pfn = proc_find(symbol, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
                     &too_new);
    CUdriverProcAddressQueryResult found = *pfn      ? CU_GET_PROC_ADDRESS_SUCCESS
                                           : too_new ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                     : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    /* the five-argument form says it in the status alone */
    if (status) {
        *status = found;
        return CUDA_SUCCESS;
    }
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult gpc_as_cuGetProcAddress_v2(uint16_t op, const char *symbol, void **pfn, int cudaVersion,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
    gpc_count(op);
    return proc_address(symbol, pfn, cudaVersion, flags, symbolStatus);
}

GPC_EXPORT CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    gpc_count(GP_OP_cuGetExportTable);
    if (!ppExportTable || !pExportTableId) {
        if (ppExportTable)
            *ppExportTable = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
    static const CUuuid activity = GPC_ACTIVITY_TABLE;
    if (memcmp(pExportTableId, &activity, sizeof activity) == 0) {
        *ppExportTable = &gpc_activity_table;
        return CUDA_SUCCESS;
    }
    static const CUuuid communicators = GPC_COMMUNICATOR_TABLE;
    if (memcmp(pExportTableId, &communicators, sizeof communicators) == 0) {
        *ppExportTable = &gpc_communicator_table;
        return CUDA_SUCCESS;
    }
    return gpc_private_table(ppExportTable, (const unsigned char *)pExportTableId->bytes,
                             gpc_private_host());
}
