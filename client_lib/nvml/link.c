/* NVLinks, and the fabric between hosts, of which a tenant is no part. */
#include <stdio.h>
#include <string.h>

#include "nvml_device.h"

static nvmlReturn_t links(nvmlDevice_t device, unsigned int link, bool *active)
{
    unsigned long long mask;
    nvmlReturn_t r = gpc_nvml_fact(device, GP_NVML_NVLINKS, &mask);
    if (r != NVML_SUCCESS)
        return r;
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *active = mask >> link & 1;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                                      nvmlEnableState_t *isActive)
{
    bool active;
    nvmlReturn_t r = links(device, link, &active);
    if (r != NVML_SUCCESS)
        return r;
    if (!isActive)
        return NVML_ERROR_INVALID_ARGUMENT;
    *isActive = active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                                        unsigned int *version)
{
    bool active;
    unsigned long long got;
    nvmlReturn_t r = links(device, link, &active);
    if (r != NVML_SUCCESS)
        return r;
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    r = gpc_nvml_fact(device, GP_NVML_NVLINK_VERSION, &got);
    if (r == NVML_SUCCESS)
        *version = (unsigned int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                                           nvmlNvLinkCapability_t capability,
                                                           unsigned int *capResult)
{
    bool active;
    nvmlReturn_t r = links(device, link, &active);
    if (r != NVML_SUCCESS)
        return r;
    if (!capResult || (unsigned)capability >= NVML_NVLINK_CAP_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* to the GPUs that the tenant has; never to the host's own memory */
    *capResult = active &&
                 (capability == NVML_NVLINK_CAP_P2P_SUPPORTED ||
                  capability == NVML_NVLINK_CAP_P2P_ATOMICS || capability == NVML_NVLINK_CAP_VALID);
    return NVML_SUCCESS;
}

/* The text has one address for each link, with commas between them, "-" for none. */
static bool remote_of(char *text, unsigned int link, const char **address)
{
    char *part = NULL;
    for (unsigned int i = 0; i <= link; i++)
        part = strsep(&text, ",");
    *address = part;
    return part && *part && strcmp(part, "-") != 0;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                                 unsigned int link,
                                                                 nvmlPciInfo_t *pci)
{
    bool active;
    char text[512];
    const char *address;
    nvmlReturn_t r = links(device, link, &active);
    if (r != NVML_SUCCESS)
        return r;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    r = gpc_nvml_text(device, GP_NVML_TEXT_NVLINK_REMOTES, text, sizeof text);
    if (r != NVML_SUCCESS)
        return r;
    unsigned domain, bus, slot;
    if (!active || !remote_of(text, link, &address) ||
        sscanf(address, "%8x:%2x:%2x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_NOT_SUPPORTED;
    *pci = (nvmlPciInfo_t){.domain = domain, .bus = bus, .device = slot};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffffu,
             bus & 0xffu, slot & 0xffu);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", domain, bus, slot);
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device,
                                                              unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t found;
    nvmlReturn_t r = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &found);
    return r == NVML_SUCCESS ? gpc_nvml_pci_older(&found, pci) : r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device,
                                                        nvmlGpuFabricInfo_t *gpuFabricInfo)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!gpuFabricInfo)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpuFabricInfo = (nvmlGpuFabricInfo_t){.state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED};
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device,
                                                         nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!gpuFabricInfo)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int version = gpuFabricInfo->version;
    if (version == nvmlGpuFabricInfo_v3)
        memset(gpuFabricInfo, 0, sizeof *gpuFabricInfo);
    else if (version == nvmlGpuFabricInfo_v2)
        memset(gpuFabricInfo, 0, sizeof(nvmlGpuFabricInfo_v2_t));
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    gpuFabricInfo->version = version;
    gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
