/* Devices: everything is in the snapshot that came with the handshake. */
#include "its.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "session.h"

const struct gp_device_info *gpc_device_its(CUdevice dev, CUresult *r)
{
    const struct gp_device_info *info = gpc_device_info(dev);
    if (!info)
        *r = CUDA_ERROR_INVALID_DEVICE;
    return info;
}

void gpc_give_text(char *to, size_t room, const char *from, size_t most)
{
    snprintf(to, room, "%.*s", (int)most, from);
}

GPC_EXPORT CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetProperties, GPC_NEEDS_INIT);
    const struct gp_device_info *d = r == CUDA_SUCCESS ? gpc_device_its(dev, &r) : NULL;
    if (!d)
        return r;
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    const int32_t *a = d->attributes;
    *prop = (CUdevprop){
        .maxThreadsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .maxThreadsDim = {a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X],
                          a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y],
                          a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z]},
        .maxGridSize = {a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X],
                        a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y],
                        a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z]},
        .sharedMemPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
        .totalConstantMemory = a[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
        .SIMDWidth = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE],
        .memPitch = a[CU_DEVICE_ATTRIBUTE_MAX_PITCH],
        .regsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
        .clockRate = a[CU_DEVICE_ATTRIBUTE_CLOCK_RATE],
        .textureAlign = a[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT],
    };
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetByPCIBusId, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!dev || !pciBusId)
        return CUDA_ERROR_INVALID_VALUE;
    /* [domain:]bus:device[.function], hexadecimal */
    unsigned domain = 0, bus = 0, slot = 0;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < gpc_device_count(); i++) {
        const int32_t *a = gpc_device_info((CUdevice)i)->attributes;
        if (a[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] == (int32_t)domain &&
            a[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] == (int32_t)bus &&
            a[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] == (int32_t)slot) {
            *dev = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* --- notices ----------------------------------------------------------------------------- */

struct CUasyncCallbackEntry_st {
    CUasyncCallbackHandle next;
    CUdevice device;
};

static pthread_mutex_t notices_lock = PTHREAD_MUTEX_INITIALIZER;
static CUasyncCallbackHandle notices;

GPC_EXPORT CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc,
                                                      void *userData,
                                                      CUasyncCallbackHandle *callback)
{
    (void)userData; /* goes with a notice, and none comes */
    CUresult r = gpc_enter(GP_OP_cuDeviceRegisterAsyncNotification, GPC_NEEDS_INIT);
    if (r == CUDA_SUCCESS)
        gpc_device_its(device, &r);
    if (r != CUDA_SUCCESS)
        return r;
    if (!callbackFunc || !callback)
        return CUDA_ERROR_INVALID_VALUE;
    CUasyncCallbackHandle made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&notices_lock);
    *made = (struct CUasyncCallbackEntry_st){notices, device};
    notices = made;
    pthread_mutex_unlock(&notices_lock);
    *callback = made;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceUnregisterAsyncNotification(CUdevice device,
                                                        CUasyncCallbackHandle callback)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceUnregisterAsyncNotification, GPC_NEEDS_INIT);
    if (r == CUDA_SUCCESS)
        gpc_device_its(device, &r);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&notices_lock);
    CUasyncCallbackHandle *at = &notices;
    while (*at && (*at != callback || (*at)->device != device))
        at = &(*at)->next;
    CUasyncCallbackHandle gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&notices_lock);
    free(gone);
    return gone ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
