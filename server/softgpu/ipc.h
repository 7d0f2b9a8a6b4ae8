/* Memory of cuMemAlloc, and of pools, that several processes have. */
#ifndef SG_IPC_H
#define SG_IPC_H

#include "softgpu.h"

/* device.c: the device of this name; NULL: there is none. */
struct sg_device *sg_device_named(const CUuuid *uuid);
/* arena.c: its memory is a file's from now on, which stays open: the descriptor, and where an
 * address is in it; -1: no room. sg.lock is held, and nothing runs on the device. */
int sg_arena_share(struct sg_arena *arena, uint64_t address, uint64_t *offset);
/* Give another process's memory back that was opened here. sg.lock is held. */
void sg_ipc_unmap(const struct sg_extent *extent);
/* Whether it is another process's pool's. */
static inline bool sg_ipc_is_pool(const struct sg_extent *extent)
{
    return extent->space == SG_SPACE_IPC && extent->pool;
}
/* It has been opened more often than this: one time less, and it stays. sg.lock is held. */
bool sg_ipc_closed(struct sg_extent *extent);

#endif
