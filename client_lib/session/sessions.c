/* Which session a handle, a device, an address or a thread belongs to. */
#include "sessions.h"

#include <stdio.h>
#include <string.h>

#include "visible.h"

static struct gpc_session sessions[GP_SESSIONS_MAX];
static unsigned count; /* open ones; written by cuInit and in forked children only */

struct gpc_session *gpc_session_at(uint32_t index)
{
    return &sessions[index];
}

unsigned gpc_session_count(void)
{
    return __atomic_load_n(&count, __ATOMIC_ACQUIRE);
}

void gpc_sessions_set_count(unsigned open)
{
    __atomic_store_n(&count, open, __ATOMIC_RELEASE);
}

void gpc_sessions_forget(void)
{
    gpc_sessions_set_count(0);
}

struct gpc_session *gpc_session_of_handle(uint64_t id)
{
    return &sessions[gp_handle_session(id)];
}

/* --- devices ------------------------------------------------------------ */

/* What the program sees of all devices; written by cuInit. Until it is, it sees all. */
static struct gpc_visible visible;
static bool hides;

/* Of all devices, whoever sees them. */
static uint32_t device_count(void)
{
    unsigned n = gpc_session_count();
    return n ? (uint32_t)sessions[n - 1].first + sessions[n - 1].snapshot->device_count : 0;
}

CUresult gpc_sessions_show(const char *list)
{
    const struct gp_device_info *devices[GP_DEVICES_MAX];
    uint32_t all = device_count();
    hides = false;
    for (uint32_t i = 0; i < all; i++)
        devices[i] = gpc_device_info((CUdevice)i);
    if (list) {
        gpc_visible_read(list, devices, all, &visible);
        hides = true;
        if (visible.twice)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return gpc_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* Which of all devices is the program's; -1: none. */
static CUdevice place_of(CUdevice device)
{
    if (!hides)
        return device;
    return device >= 0 && (unsigned)device < visible.count ? visible.at[device] : -1;
}

CUdevice gpc_device_of(const struct gpc_session *s, uint32_t ordinal)
{
    if (ordinal >= s->snapshot->device_count) /* a worker's word */
        return -1;
    CUdevice place = s->first + (CUdevice)ordinal;
    if (!hides)
        return place;
    for (unsigned i = 0; i < visible.count; i++)
        if (visible.at[i] == place)
            return (CUdevice)i;
    return -1;
}

struct gpc_session *gpc_session_of_device(CUdevice device)
{
    int32_t ordinal;
    return gpc_device_find(device, &ordinal);
}

struct gpc_session *gpc_device_find(CUdevice device, int32_t *ordinal)
{
    CUdevice place = place_of(device);
    for (unsigned i = gpc_session_count(); i-- > 0;) {
        if (place < sessions[i].first)
            continue;
        *ordinal = place - sessions[i].first;
        return (uint32_t)*ordinal < sessions[i].snapshot->device_count ? &sessions[i] : NULL;
    }
    return NULL;
}

uint32_t gpc_device_count(void)
{
    return hides ? visible.count : device_count();
}

const struct gp_device_info *gpc_device_info(CUdevice device)
{
    int32_t ordinal;
    const struct gpc_session *s = gpc_device_find(device, &ordinal);
    return s ? &s->snapshot->devices[ordinal] : NULL;
}

/* --- addresses ---------------------------------------------------------- */

struct gpc_session *gpc_session_of_address(uint64_t address)
{
    for (unsigned i = 0; i < gpc_session_count(); i++)
        if (address >= sessions[i].window_begin && address < sessions[i].window_end)
            return &sessions[i];
    return NULL;
}

const char *gpc_sessions_transport(void)
{
    static char names[64];
    names[0] = '\0';
    for (unsigned i = 0; i < gpc_session_count(); i++) {
        const char *name = sessions[i].transport->name;
        size_t used = strlen(names);
        if (!strstr(names, name))
            snprintf(names + used, sizeof names - used, "%s%s", used ? "+" : "", name);
    }
    return names[0] ? names : "none";
}
