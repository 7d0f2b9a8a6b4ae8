/* Devices: everything is in the snapshot that came with the handshake. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "session.h"

/* NULL and the error CUDA gives, or the device. */
static const struct gp_device_info *enter(uint16_t op, CUdevice dev, CUresult *r)
{
    *r = gpc_enter(op, GPC_NEEDS_INIT);
    if (*r != CUDA_SUCCESS)
        return NULL;
    const struct gp_device_info *info = gpc_device_info(dev);
    if (!info)
        *r = CUDA_ERROR_INVALID_DEVICE;
    return info;
}

GPC_EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetCount, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)gpc_device_count();
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult r;
    if (!enter(GP_OP_cuDeviceGet, ordinal, &r))
        return r;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceGetName, dev, &r);
    if (!d)
        return r;
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "%.*s", (int)sizeof d->name, d->name);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(uint16_t op, CUuuid *uuid, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(op, dev, &r);
    if (!d)
        return r;
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, d->uuid, sizeof d->uuid);
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return get_uuid(GP_OP_cuDeviceGetUuid, uuid, dev);
}

GPC_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    return get_uuid(GP_OP_cuDeviceGetUuid_v2, uuid, dev);
}

GPC_EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
    CUresult r;
    if (!enter(GP_OP_cuDeviceGetLuid, dev, &r))
        return r;
    (void)luid;
    (void)deviceNodeMask;
    return CUDA_ERROR_NOT_SUPPORTED; /* as the Linux driver says: LUIDs are Windows' */
}

GPC_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceTotalMem_v2, dev, &r);
    if (!d)
        return r;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = d->total_bytes;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceGetAttribute, dev, &r);
    if (!d)
        return r;
    if (!pi || attrib <= 0 || (unsigned)attrib >= GP_ATTRIBUTES ||
        d->attributes[attrib] == GP_ATTRIBUTE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    *pi = d->attributes[attrib];
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceComputeCapability, dev, &r);
    if (!d)
        return r;
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = d->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = d->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceGetProperties, dev, &r);
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
        .maxGridSize = {a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X], a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y],
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

GPC_EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    CUresult r;
    const struct gp_device_info *d = enter(GP_OP_cuDeviceGetPCIBusId, dev, &r);
    if (!d)
        return r;
    if (!pciBusId || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(pciBusId, (size_t)len, "%.*s", (int)sizeof d->pci_bus_id, d->pci_bus_id);
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
