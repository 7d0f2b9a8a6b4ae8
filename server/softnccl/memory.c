/* Memory of NCCL's own, and what is registered: nothing is faster for it here. */
#include <stdlib.h>

#include "softnccl.h"

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    CUdeviceptr address;
    if (!ptr || !size)
        return sn_fail(ncclInvalidArgument, "ncclMemAlloc: ptr is NULL, or size is 0");
    if (!sn_driver())
        return ncclSystemError;
    SN_CUDA(cuMemAlloc_v2, &address, size);
    *ptr = (void *)(uintptr_t)address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
    if (!ptr)
        return ncclSuccess;
    if (!sn_driver())
        return ncclSystemError;
    SN_CUDA(cuMemFree_v2, (uintptr_t)ptr);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    SN_TRY(sn_comm_ready(comm));
    if (!handle || !size)
        return sn_fail(ncclInvalidArgument, "ncclCommRegister: handle is NULL, or size is 0");
    SN_TRY(sn_memory_check(buff, size, "ncclCommRegister: buff"));
    struct sn_registration *made = calloc(1, sizeof *made);
    if (!made)
        return sn_fail(ncclSystemError, "no memory");
    pthread_mutex_lock(&comm->lock);
    made->next = comm->registrations;
    comm->registrations = made;
    pthread_mutex_unlock(&comm->lock);
    *handle = made;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    SN_TRY(sn_comm_check(comm));
    pthread_mutex_lock(&comm->lock);
    struct sn_registration **link = &comm->registrations, *found;
    while (*link && *link != handle)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&comm->lock);
    free(found);
    return found ? ncclSuccess
                 : sn_fail(ncclInvalidArgument, "ncclCommDeregister: %p is not registered", handle);
}

/* As NCCL says where memory cannot be symmetric: success, and no window. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags)
{
    (void)winFlags;
    SN_TRY(sn_comm_ready(comm));
    if (!win)
        return sn_fail(ncclInvalidArgument, "ncclCommWindowRegister: win is NULL");
    SN_TRY(sn_memory_check(buff, size, "ncclCommWindowRegister: buff"));
    *win = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    SN_TRY(sn_comm_check(comm));
    return win ? sn_fail(ncclInvalidArgument, "ncclCommWindowDeregister: there is no such window")
               : ncclSuccess;
}
