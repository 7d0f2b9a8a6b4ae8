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
    /* Freed in stream order, and no wait of the application's has come by since sg_waited was so: it
     * can be allocated again, and is given back by nothing else. */
    uint64_t unseen, unseen_since;
    int reuse_flags[4];
    uint32_t access; /* bit per peer device with read-write access */
    /* What other processes know it by: the process that has it, and a number there; 0: none
     * does. One of another process's has no memory but what is imported by its pointers. */
    int32_t process;
    uint64_t id;
    bool imported;
};
CUmemoryPool sg_pool_create(struct sg_device *device, bool is_default);
/* How often the application has waited for something; under the lock. */
extern uint64_t sg_waited;
void sg_pool_unref(CUmemoryPool pool);
/* Give memory back in a stream's order. */
void sg_pool_free_in_order(uint64_t address);

#endif
