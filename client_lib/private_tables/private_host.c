/* What the private tables need of the rest of the client. */
#include "call.h"
#include "context.h"
#include "export.h"
#include "gpc_wire.h"
#include "module.h"
#include "operations_there.h"
#include "private_tables.h"
#include "session.h"
#include "stream.h"

#include <string.h>

static CUresult primary(CUcontext *out, CUdevice device)
{
    return gpc_context_primary(device, out);
}

static CUresult context_id(CUcontext context, uint64_t *id)
{
    *id = gpc_context_unique_id(context);
    return *id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult stream_identity(CUcontext context, CUstream stream, uint64_t *identity)
{
    *identity = gpc_stream_identity(context ? context : gpc_current(), stream, 0);
    return *identity ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static int device_count(void)
{
    return (int)gpc_device_count();
}

static bool device_get(int ordinal, struct gpc_private_device *out)
{
    const struct gp_device_info *d = gpc_device_info(ordinal);
    if (!d)
        return false;
    memcpy(out->uuid, d->uuid, sizeof out->uuid);
    out->pci_domain = d->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID];
    out->pci_bus = d->attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID];
    out->pci_device = d->attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
    return true;
}

_Static_assert(sizeof((struct gpc_private_topology){0}.gpc) == GP_TOPOLOGY_MAX &&
                   sizeof((struct gpc_private_topology){0}.index) == GP_TOPOLOGY_MAX,
               "what a message brings has room");

/* An earlier worker has said it in its snapshot. */
static CUresult topology(struct gpc_private_topology *out)
{
    struct gpc_route on = gpc_route_here();
    const struct gpc_session *session = gpc_route_session(&on);
    const struct gp_device_info *d = gpc_device_info(gpc_context_device(gpc_current()));
    uint32_t clusters = 0, places = 0;
    if (!d || !session)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!gpc_session_has(session, GP_OP_gp_topology)) {
        memcpy(out->gpc, d->topology_gpc, sizeof out->gpc);
        memcpy(out->index, d->topology_index, sizeof out->index);
        out->pairs = d->topology_count;
        return CUDA_SUCCESS;
    }
    CUresult r = gpc_wire_gp_topology_on(&on, out->gpc, out->index, &clusters, &places);
    out->pairs = r == CUDA_SUCCESS && clusters == places ? clusters : 0;
    return r;
}

static void unknown_slot(const char *table, unsigned slot)
{
    gpc_log(GPC_LOG_INFO, "private table %s: slot %u is not known here", table, slot);
}

static void note(bool warn, const char *line)
{
    gpc_log(warn ? GPC_LOG_WARN : GPC_LOG_INFO, "%s", line);
}

const struct gpc_private_host *gpc_private_host(void)
{
    static const struct gpc_private_host host = {
        .context_current = gpc_current_context,
        .context_primary = primary,
        .context_is_live = gpc_context_live,
        .context_id = context_id,
        .module_load = cuModuleLoadData,
        .module_functions = gpc_module_each_function,
        .stream_identity = stream_identity,
        .device_count = device_count,
        .device_get = device_get,
        .driver_version = gpc_driver_version,
        .topology = topology,
        .unknown_slot = unknown_slot,
        .note = note,
    };
    return &host;
}
