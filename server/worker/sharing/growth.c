#include "growth.h"

#include "gate.h"
#include "gp_ops.h"
#include "quota.h"

/* Code of one module is less; its variables may be more. */
#define FAR (UINT64_C(32) << 20)

void gpw_growth_in_graphs(struct gpw_session *s)
{
    s->graphs_allocate = true;
}

void gpw_growth_trim_graphs(struct gpw_session *s, uint32_t ordinal)
{
    if (s->graphs_allocate && s->driver->cuDeviceGraphMemTrim(s->devices[ordinal]) == CUDA_SUCCESS)
        gpw_quota_reconcile(s, ordinal);
}

/* The current context's device if it has a limit, else -1. */
static int limited_ordinal(struct gpw_session *s)
{
    int ordinal = gpw_current_ordinal(s);
    return ordinal >= 0 && gpw_gate_seat(s, (uint32_t)ordinal) ? ordinal : -1;
}

static bool free_now(struct gpw_session *s, size_t *bytes)
{
    size_t total;
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemGetInfo_v2(bytes, &total);
    gpw_strict(s, before);
    return r == CUDA_SUCCESS;
}

void gpw_growth_begin(struct gpw_session *s, uint16_t op, struct gpw_growth *g)
{
    size_t free_bytes;
    *g = (struct gpw_growth){.ordinal = -1};
    if (gp_op_info(op)->graph_exec_at && !s->graphs_allocate)
        return;
    int ordinal = limited_ordinal(s);
    if (ordinal < 0 || !free_now(s, &free_bytes))
        return;
    g->ordinal = ordinal;
    g->free_before = free_bytes;
}

bool gpw_growth_over(struct gpw_session *s, struct gpw_growth *g)
{
    size_t free_bytes;
    if (g->ordinal < 0 || !free_now(s, &free_bytes) || free_bytes == g->free_before)
        return false;
    if (free_bytes < g->free_before &&
        gpw_quota_estimate(s, (uint32_t)g->ordinal, g->free_before - free_bytes))
        return false;
    return !gpw_quota_settle(s, (uint32_t)g->ordinal, &g->over) && free_bytes < g->free_before;
}

bool gpw_growth_far(const struct gpw_growth *g)
{
    return g->over > FAR;
}

void gpw_growth_undone(struct gpw_session *s, const struct gpw_growth *g)
{
    gpw_quota_reconcile(s, (uint32_t)g->ordinal);
}

/* Threads that a device can hold at once. */
static uint64_t resident_threads(struct gpw_session *s, uint32_t ordinal)
{
    int processors = 0, threads = 0;
    CUdevice device = s->devices[ordinal];
    s->driver->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    s->driver->cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                    device);
    return (uint64_t)processors * (uint64_t)threads;
}

bool gpw_growth_local_fits(struct gpw_session *s, uint32_t bytes)
{
    int ordinal = limited_ordinal(s);
    if (ordinal < 0 || bytes <= s->local_bytes[ordinal])
        return true;
    uint64_t more = (bytes - s->local_bytes[ordinal]) * resident_threads(s, (uint32_t)ordinal);
    return gpw_quota_fits(s, (uint32_t)ordinal, more);
}

void gpw_growth_local_taken(struct gpw_session *s, uint32_t bytes)
{
    int ordinal = limited_ordinal(s);
    if (ordinal < 0 || bytes <= s->local_bytes[ordinal])
        return;
    s->local_bytes[ordinal] = bytes;
    gpw_quota_reconcile(s, (uint32_t)ordinal);
}
