/* Pools, which count what is allocated in stream order. */
#ifndef SG_POOL_H
#define SG_POOL_H

#include "softgpu.h"

struct CUmemPoolHandle_st {
    struct sg_device *device;
    bool is_default;
    int refs; /* the handle, and each live allocation */
    CUmemPoolProps props;
    uint64_t release_threshold, used, used_high, reserved_high;
    int reuse_flags[4];
    uint32_t access; /* bit per peer device with read-write access */
    /* What other processes know it by: the process that has it, and a number there; 0: none
     * does. One of another process's has no memory but what is imported by its pointers. */
    int32_t process;
    uint64_t id;
    bool imported;
};
CUmemoryPool sg_pool_create(struct sg_device *device, bool is_default);
void sg_pool_unref(CUmemoryPool pool);

#endif
