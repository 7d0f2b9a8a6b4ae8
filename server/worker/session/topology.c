#include "topology.h"

#include <string.h>

#define TABLE_SLOTS 17
#define SLOT_GET 4
#define SLOT_FREE 13

/* Arguments seen beside these are left-over registers. */
typedef CUresult get_fn(uint8_t **gpc, uint8_t **index);
typedef CUresult free_fn(uint8_t *gpc, uint8_t *index);

void gpw_topology_fill(struct gpw_session *s, CUdevice device, struct gp_device_info *info)
{
    static const CUuuid uuid = {{0x17, 0x34, (char)0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45,
                                 (char)0x86, (char)0x96, (char)0xc0, (char)0xf1, (char)0xe7,
                                 (char)0xdd, (char)0x8b, (char)0xca}};
    const void *table = NULL;
    if (s->driver->cuGetExportTable(&table, &uuid) != CUDA_SUCCESS || !table)
        return;
    const uintptr_t *slots = table;
    if (slots[0] != TABLE_SLOTS * sizeof(void *) || !slots[SLOT_GET] || !slots[SLOT_FREE])
        return;
    int processors = info->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    uint32_t pairs = processors > 0 ? (uint32_t)processors / 2 : 0;
    if (pairs == 0 || pairs > GP_TOPOLOGY_MAX)
        return;
    /* it answers for the current context's device */
    CUcontext before = NULL, context = NULL;
    s->driver->cuCtxGetCurrent(&before);
    if (s->driver->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return;
    s->driver->cuCtxSetCurrent(context);
    uint8_t *gpc = NULL, *index = NULL;
    if (((get_fn *)slots[SLOT_GET])(&gpc, &index) == CUDA_SUCCESS && gpc && index) {
        memcpy(info->topology_gpc, gpc, pairs);
        memcpy(info->topology_index, index, pairs);
        info->topology_count = pairs;
        ((free_fn *)slots[SLOT_FREE])(gpc, index);
    }
    s->driver->cuCtxSetCurrent(before);
    s->driver->cuDevicePrimaryCtxRelease_v2(device);
}
