/* The greeting: check the client, then send it everything that can be known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gp_ids.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "memory.h"
#include "quota.h"
#include "tell.h"
#include "topology.h"

/* Equal without telling by its time how much of it is. */
static bool same_secret(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;
    for (unsigned i = 0; i < 16; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

static void fill_device(struct gpw_session *s, uint32_t ordinal, struct gp_device_info *info)
{
    const struct gpw_driver *d = s->driver;
    CUdevice device = s->devices[ordinal];
    memset(info, 0, sizeof *info);
    d->cuDeviceGetName(info->name, (int)sizeof info->name, device);
    d->cuDeviceGetUuid_v2((CUuuid *)info->uuid, device);
    size_t total = 0;
    d->cuDeviceTotalMem_v2(&total, device);
    info->total_bytes = gpw_quota_limit(s, ordinal, total);
    d->cuDeviceGetPCIBusId(info->pci_bus_id, (int)sizeof info->pci_bus_id, device);
    for (int i = 0; i < GP_ATTRIBUTES; i++) {
        int value;
        CUresult r = i == 0 ? CUDA_ERROR_INVALID_VALUE
                            : d->cuDeviceGetAttribute(&value, (CUdevice_attribute)i, device);
        info->attributes[i] = r == CUDA_SUCCESS ? value : GP_ATTRIBUTE_NONE;
    }
    /* stream priorities are a context's, but the same for all devices we know */
    info->least_priority = 0;
    info->greatest_priority = info->attributes[CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] == 1
                                  ? -5
                                  : 0;
    gpw_topology_fill(s, device, info);
    gpw_memory_window(s, ordinal, &info->window_begin, &info->window_end);
}

static void fill_snapshot(struct gpw_session *s, struct gp_snapshot *snapshot)
{
    int version = 0;
    s->driver->cuDriverGetVersion(&version);
    memset(snapshot, 0, sizeof *snapshot);
    snapshot->head_bytes = sizeof *snapshot;
    snapshot->device_bytes = sizeof snapshot->devices[0];
    snapshot->size = snapshot->head_bytes + s->device_count * snapshot->device_bytes;
    snapshot->driver_version = (uint32_t)version;
    snapshot->device_count = s->device_count;
    for (uint32_t i = 0; i < s->device_count; i++)
        fill_device(s, i, &snapshot->devices[i]);
    if (s->soft)
        snapshot->flags |= GP_SNAPSHOT_SOFT;
}

#define WHY_BYTES 128

/* What the client speaks and has. NULL, or why that is not enough for a session. */
static const char *take_release(struct gpw_session *s, uint32_t newest, uint32_t oldest,
                                const uint32_t *operations, uint32_t count, char why[WHY_BYTES])
{
    s->wire = gp_wire_agree(newest, oldest);
    if (!s->wire) {
        snprintf(why, WHY_BYTES, "it speaks protocol %u to %u, this worker %u to %u", oldest,
                 newest, GP_WIRE_OLDEST, GP_WIRE_VERSION);
        return why;
    }
    if (!gp_shared_read(&s->shared, operations, count))
        return "its list of operations is malformed";
    const char *missing = gp_shared_lacks(&s->shared, gp_core_notifies);
    if (!missing)
        return NULL;
    snprintf(why, WHY_BYTES, "it does not know '%s', or in another form", missing);
    return why;
}

CUresult gpw_gp_hello(struct gpw_session *s, uint32_t wire_newest, uint32_t wire_oldest,
                      uint32_t client_pid, uint32_t session_index, uint64_t window_base,
                      uint32_t operation_count, uint32_t more_bytes, const uint8_t *secret,
                      const char *program, const uint32_t *operations, const void *more,
                      uint32_t *wire, uint32_t *known, uint32_t *n_known, void *snapshot,
                      uint32_t *n_snapshot)
{
    (void)more_bytes, (void)more; /* of a later release */
    *n_known = *n_snapshot = 0;
    if (!same_secret(secret, s->secret)) {
        gpw_session_broken(s, "the session's secret is wrong");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (s->greeted || session_index >= GP_SESSIONS_MAX) { /* before anything is taken over */
        gpw_session_broken(s, s->greeted ? "it greeted twice" : "it has too many sessions");
        return CUDA_ERROR_INVALID_VALUE;
    }
    char why[WHY_BYTES];
    const char *foreign = take_release(s, wire_newest, wire_oldest, operations, operation_count,
                                       why);
    if (foreign) {
        gpw_session_broken(s, foreign);
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    }
    CUresult r = gpw_memory_place(s, window_base);
    if (r != CUDA_SUCCESS) {
        gpw_session_broken(s, "its devices' addresses cannot be where it wants them");
        return r;
    }
    s->index = session_index;
    s->client_pid = client_pid;
    snprintf(s->program, sizeof s->program, "%s", program);
    for (char *c = s->program; *c; c++)
        if ((unsigned char)*c < 32 || *c == '"' || *c == '\\' || *c == 127)
            *c = '?'; /* it goes into logs and JSON */
    /* pairs with the control thread, which tells of all that */
    __atomic_store_n(&s->greeted, true, __ATOMIC_RELEASE);
    gpw_tell(s, "joined");
    *wire = s->wire;
    memcpy(known, gp_operations, sizeof gp_operations);
    *n_known = sizeof gp_operations;
    fill_snapshot(s, snapshot);
    *n_snapshot = ((struct gp_snapshot *)snapshot)->size;
    gpw_log("info", "greeted %s (pid %u) over %s, %u device(s)", s->program, client_pid,
            s->transport->name, s->device_count);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_goodbye(struct gpw_session *s)
{
    gpw_log("info", "the client said goodbye after %llu messages", (unsigned long long)s->calls);
    s->ended = true;
    return CUDA_SUCCESS;
}
