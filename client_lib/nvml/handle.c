/* Which devices there are, how they are found, and how they lie to each other. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml_device.h"
#include "nvml_state.h"

struct address {
    unsigned domain, bus, device;
};

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    const struct gpc_nvml_state *s;
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    if (deviceCount)
        *deviceCount = s->count;
    else
        r = NVML_ERROR_INVALID_ARGUMENT;
    gpc_nvml_give_back();
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    unsigned int count = 0;
    nvmlReturn_t r = nvmlDeviceGetCount_v2(&count);
    if (r != NVML_SUCCESS)
        return r;
    if (!device || index >= count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = gpc_nvml_handle(index);
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned int)gpc_nvml_index(device);
    return NVML_SUCCESS;
}

/* domain:bus:device.function or bus:device, hexadecimal. */
static bool address_read(const char *text, struct address *a)
{
    unsigned function = 0;
    int end = 0;
    if (sscanf(text, "%8x:%2x:%2x%n.%1x%n", &a->domain, &a->bus, &a->device, &end, &function,
               &end) >= 3 &&
        text[end] == '\0')
        return true;
    a->domain = 0;
    end = 0;
    return sscanf(text, "%2x:%2x%n.%1x%n", &a->bus, &a->device, &end, &function, &end) >= 2 &&
           text[end] == '\0';
}

static bool same_pci(const struct gpc_nvml_device *d, const void *wanted)
{
    struct address a;
    const struct address *w = wanted;
    return address_read(d->pci, &a) && a.domain == w->domain && a.bus == w->bus &&
           a.device == w->device;
}

static bool same_uuid(const struct gpc_nvml_device *d, const void *wanted)
{
    return strcasecmp(d->uuid, wanted) == 0;
}

static nvmlReturn_t find(bool (*same)(const struct gpc_nvml_device *, const void *),
                         const void *wanted, nvmlDevice_t *device)
{
    const struct gpc_nvml_state *s;
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    r = NVML_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < s->count && r != NVML_SUCCESS; i++) {
        if (!same(&s->device[i], wanted))
            continue;
        *device = gpc_nvml_handle(i);
        r = NVML_SUCCESS;
    }
    gpc_nvml_give_back();
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId,
                                                              nvmlDevice_t *device)
{
    nvmlReturn_t r = gpc_nvml_ready();
    struct address a;
    if (r != NVML_SUCCESS)
        return r;
    if (!pciBusId || !device || !address_read(pciBusId, &a))
        return NVML_ERROR_INVALID_ARGUMENT;
    return find(same_pci, &a, device);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find(same_uuid, uuid, device);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid,
                                                        nvmlDevice_t *device)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != nvmlUUID_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char text[NVML_DEVICE_UUID_BUFFER_SIZE] = "GPU";
    if (uuid->type == NVML_UUID_TYPE_BINARY) {
        for (size_t i = 0, at = 3; i < sizeof uuid->value.bytes; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%02x",
                                   i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                   uuid->value.bytes[i]);
    } else if (uuid->type == NVML_UUID_TYPE_ASCII) {
        snprintf(text, sizeof text, "%.*s", (int)sizeof uuid->value.str, uuid->value.str);
    } else {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return find(same_uuid, text, device);
}

static nvmlReturn_t address_of(nvmlDevice_t device, struct address *a, char *text, size_t room)
{
    nvmlReturn_t r = gpc_nvml_text(device, GP_NVML_TEXT_PCI, text, (unsigned)room);
    if (r != NVML_SUCCESS)
        return r;
    return address_read(text, a) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct address a;
    char text[32];
    unsigned long long id, subsystem;
    nvmlReturn_t r = address_of(device, &a, text, sizeof text);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_fact_or(device, GP_NVML_PCI_DEVICE, 0, &id);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_fact_or(device, GP_NVML_PCI_SUBSYSTEM, 0, &subsystem);
    if (r != NVML_SUCCESS)
        return r;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pci = (nvmlPciInfo_t){.domain = a.domain,
                           .bus = a.bus,
                           .device = a.device,
                           .pciDeviceId = (unsigned)id,
                           .pciSubSystemId = (unsigned)subsystem};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", a.domain & 0xffffu,
             a.bus & 0xffu, a.device & 0xffu);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", a.domain, a.bus, a.device);
    return NVML_SUCCESS;
}

nvmlReturn_t gpc_nvml_pci_older(const nvmlPciInfo_t *found, nvmlPciInfo_t *pci)
{
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(pci, found, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t found;
    nvmlReturn_t r = nvmlDeviceGetPciInfo_v3(device, &found);
    return r == NVML_SUCCESS ? gpc_nvml_pci_older(&found, pci) : r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    nvmlPciInfo_t plain;
    nvmlReturn_t r = nvmlDeviceGetPciInfo_v3(device, &plain);
    if (r != NVML_SUCCESS)
        return r;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *pci = (nvmlPciInfoExt_t){.version = nvmlPciInfoExt_v1,
                              .domain = plain.domain,
                              .bus = plain.bus,
                              .device = plain.device,
                              .pciDeviceId = plain.pciDeviceId,
                              .pciSubSystemId = plain.pciSubSystemId,
                              .baseClass = 3,
                              .subClass = 2}; /* a display, 3D controller */
    memcpy(pci->busId, plain.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

/* --- pairs ---------------------------------------------------------------- */

/* Whether they are of one host; `*at`: which of that host's devices the second is. */
static nvmlReturn_t same_host(nvmlDevice_t one, nvmlDevice_t other, bool *same, uint32_t *at)
{
    const struct gpc_nvml_state *s;
    int a = gpc_nvml_index(one), b = gpc_nvml_index(other);
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    *same = s->device[a].server == s->device[b].server;
    *at = (uint32_t)b - s->device[b].first;
    gpc_nvml_give_back();
    return NVML_SUCCESS;
}

/* The digit that the first device's text has for the second; '\0' if it has none, '-' if
 * they are of two hosts. */
static nvmlReturn_t pair(nvmlDevice_t one, nvmlDevice_t other, enum gpc_nvml_text wanted,
                         char *digit)
{
    char text[GPC_NVML_DEVICES + 1] = "";
    nvmlReturn_t r = gpc_nvml_known(other);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_text(one, wanted, text, sizeof text);
    if (r == NVML_ERROR_NOT_SUPPORTED)
        r = NVML_SUCCESS;
    bool same;
    uint32_t index;
    if (r == NVML_SUCCESS)
        r = same_host(one, other, &same, &index);
    if (r == NVML_SUCCESS)
        *digit = !same ? '-' : index < strlen(text) ? text[index] : '\0';
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1,
                                                                 nvmlDevice_t device2,
                                                                 nvmlGpuTopologyLevel_t *pathInfo)
{
    char digit;
    nvmlReturn_t r = pair(device1, device2, GP_NVML_TEXT_TOPOLOGY, &digit);
    if (r != NVML_SUCCESS)
        return r;
    if (!pathInfo)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device1 == device2)
        digit = '0';
    if (digit == '-') /* there is no level above */
        digit = '5';
    if (digit < '0' || digit > '5')
        return NVML_ERROR_NOT_SUPPORTED;
    *pathInfo = (nvmlGpuTopologyLevel_t)((digit - '0') * 10);
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                                    nvmlGpuP2PCapsIndex_t p2pIndex,
                                                    nvmlGpuP2PStatus_t *p2pStatus)
{
    char digit;
    unsigned long long links = 0;
    nvmlReturn_t r = pair(device1, device2, GP_NVML_TEXT_PEERS, &digit);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_fact_or(device1, GP_NVML_NVLINKS, 0, &links);
    if (r != NVML_SUCCESS)
        return r;
    if (!p2pStatus || (unsigned)p2pIndex >= NVML_P2P_CAPS_INDEX_UNKNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (digit == '?' && device1 != device2) {
        *p2pStatus = NVML_P2P_STATUS_UNKNOWN; /* the server's NVML could not tell */
        return NVML_SUCCESS;
    }
    bool reach = device1 == device2 || digit == '1';
    if (p2pIndex == NVML_P2P_CAPS_INDEX_NVLINK || p2pIndex == NVML_P2P_CAPS_INDEX_ATOMICS)
        reach = reach && links != 0;
    *p2pStatus = reach ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2,
                                                   int *onSameBoard)
{
    nvmlReturn_t r = gpc_nvml_known(device1);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_known(device2);
    if (r != NVML_SUCCESS)
        return r;
    if (!onSameBoard)
        return NVML_ERROR_INVALID_ARGUMENT;
    *onSameBoard = device1 == device2;
    return NVML_SUCCESS;
}
