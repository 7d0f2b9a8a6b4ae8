/* Which session a handle, a device, an address or a thread belongs to. */
#include "sessions.h"

#include <stdio.h>
#include <string.h>

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

struct gpc_session *gpc_session_of_device(CUdevice device)
{
    for (unsigned i = gpc_session_count(); i-- > 0;)
        if (device >= sessions[i].first)
            return (uint32_t)(device - sessions[i].first) < sessions[i].snapshot->device_count
                       ? &sessions[i]
                       : NULL;
    return NULL;
}

struct gpc_session *gpc_session_of_address(uint64_t address)
{
    for (unsigned i = 0; i < gpc_session_count(); i++)
        if (address >= sessions[i].window_begin && address < sessions[i].window_end)
            return &sessions[i];
    return NULL;
}

uint32_t gpc_device_count(void)
{
    unsigned n = gpc_session_count();
    return n ? (uint32_t)sessions[n - 1].first + sessions[n - 1].snapshot->device_count : 0;
}

const struct gp_device_info *gpc_device_info(CUdevice device)
{
    const struct gpc_session *s = gpc_session_of_device(device);
    return s ? &s->snapshot->devices[device - s->first] : NULL;
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
