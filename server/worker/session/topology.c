#include "topology.h"

#include <string.h>

#include "gpw_handlers.h"

#define TABLE_SLOTS 17
#define SLOT_GET 4
#define SLOT_FREE 13

/* Arguments seen beside these are left-over registers. */
typedef CUresult get_fn(uint8_t **gpc, uint8_t **index);
typedef CUresult free_fn(uint8_t *gpc, uint8_t *index);

/* NULL where the driver has no such table. */
static const uintptr_t *table_of(struct gpw_session *s)
{
    static const CUuuid uuid = {{0x17, 0x34, (char)0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45,
                                 (char)0x86, (char)0x96, (char)0xc0, (char)0xf1, (char)0xe7,
                                 (char)0xdd, (char)0x8b, (char)0xca}};
    const void *table = NULL;
    if (s->driver->cuGetExportTable(&table, &uuid) != CUDA_SUCCESS || !table)
        return NULL;
    const uintptr_t *slots = table;
    bool known = slots[0] == TABLE_SLOTS * sizeof(void *) && slots[SLOT_GET] && slots[SLOT_FREE];
    return known ? slots : NULL;
}

/* Of the current context's device: how many pairs, 0 where it is not known. */
static uint32_t ask(struct gpw_session *s, CUdevice device, uint8_t gpc[GP_TOPOLOGY_MAX],
                    uint8_t index[GP_TOPOLOGY_MAX])
{
    const uintptr_t *slots = table_of(s);
    uint8_t *own_gpc = NULL, *own_index = NULL;
    int processors = 0;
    s->driver->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    uint32_t pairs = processors > 0 ? (uint32_t)processors / 2 : 0;
    if (!slots || pairs == 0 || pairs > GP_TOPOLOGY_MAX ||
        ((get_fn *)slots[SLOT_GET])(&own_gpc, &own_index) != CUDA_SUCCESS || !own_gpc || !own_index)
        return 0;
    memcpy(gpc, own_gpc, pairs);
    memcpy(index, own_index, pairs);
    ((free_fn *)slots[SLOT_FREE])(own_gpc, own_index);
    return pairs;
}

CUresult gpw_gp_topology(struct gpw_session *s, uint8_t *gpc, uint32_t *n_gpc, uint8_t *index,
                         uint32_t *n_index)
{
    CUdevice device;
    *n_gpc = *n_index = 0;
    CUresult r = s->driver->cuCtxGetDevice(&device);
    if (r == CUDA_SUCCESS)
        *n_gpc = *n_index = ask(s, device, gpc, index);
    return r;
}

void gpw_topology_fill(struct gpw_session *s, CUdevice device, struct gp_device_info *info)
{
    CUcontext before = NULL, context = NULL;
    if (gp_shared_has(&s->shared, GP_OP_gp_topology) || !table_of(s))
        return;
    s->driver->cuCtxGetCurrent(&before);
    if (s->driver->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return;
    s->driver->cuCtxSetCurrent(context);
    info->topology_count = ask(s, device, info->topology_gpc, info->topology_index);
    s->driver->cuCtxSetCurrent(before);
    s->driver->cuDevicePrimaryCtxRelease_v2(device);
}
