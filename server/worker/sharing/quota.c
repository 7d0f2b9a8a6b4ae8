#include "quota.h"

#include <string.h>
#include <time.h>

#include "gate.h"
#include "held.h"
#include "memory_internal.h"
#include "nccl.h"
#include "pool.h"
#include "seat.h"

/* What a session may be over its limit and live: code that the driver loads when a kernel is
 * launched first has been asked for by nobody. */
#define SLACK (UINT64_C(128) << 20)
#define LOOKS 2
/* So many more where communicators have been given up for it, until NCCL has given back theirs. */
#define LOOKS_MORE 8
/* Asking NVML takes longer than most calls behind which it would be asked. As long as so much is left,
 * code and variables that a driver loads are charged as the device's free memory says, which is wrong by
 * what other processes have taken or given back in that moment; but never more than so much. */
#define ESTIMATE_LEFT (UINT64_C(1) << 30)
#define ESTIMATE_MOST (UINT64_C(64) << 20)

/* Where an estimate may be why it does not fit, NVML is asked. */
static bool fits(struct gpw_session *s, uint32_t ordinal, struct gp_seat *seat, uint64_t bytes)
{
    if (gp_seat_memory_fits(seat, bytes))
        return true;
    if (!s->accounts[ordinal].estimated)
        return false;
    gpw_quota_reconcile(s, ordinal);
    return gp_seat_memory_fits(seat, bytes);
}

bool gpw_quota_take(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    if (!seat)
        return true;
    if (!fits(s, ordinal, seat, bytes))
        gpw_pools_trim(s, ordinal);
    if (!gp_seat_memory_take(seat, bytes))
        return false;
    s->accounts[ordinal].counted += bytes;
    return true;
}

bool gpw_quota_fits(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    return !seat || fits(s, ordinal, seat, bytes);
}

void gpw_quota_give(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    if (!seat)
        return;
    gp_seat_memory_give(seat, bytes);
    s->accounts[ordinal].counted -= bytes;
}

uint64_t gpw_quota_limit(struct gpw_session *s, uint32_t ordinal, uint64_t physical)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    uint64_t limit = seat ? gp_seat_memory_limit(seat) : physical;
    return limit < physical ? limit : physical;
}

void gpw_quota_info(struct gpw_session *s, uint32_t ordinal, size_t *free_bytes, size_t *total)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    if (!seat)
        return;
    if (s->accounts[ordinal].estimated)
        gpw_quota_reconcile(s, ordinal);
    uint64_t left = gp_seat_memory_left(seat), limit = gp_seat_memory_limit(seat);
    if (left < *free_bytes)
        *free_bytes = left;
    if (limit < *total)
        *total = limit;
}

bool gpw_quota_estimate(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    struct gpw_account *a = &s->accounts[ordinal];
    if (!seat || s->soft || bytes > ESTIMATE_MOST - a->estimated ||
        !gp_seat_memory_fits(seat, bytes + ESTIMATE_LEFT) || !gp_seat_memory_take(seat, bytes))
        return false;
    a->overhead += bytes;
    a->estimated += bytes;
    return true;
}

/* Nobody says what is held, so nothing of it is charged. */
static void estimate_forget(struct gp_seat *seat, struct gpw_account *a)
{
    if (!a->estimated)
        return;
    gp_seat_memory_give(seat, a->estimated);
    a->overhead -= a->estimated;
    a->estimated = 0;
}

bool gpw_quota_settle(struct gpw_session *s, uint32_t ordinal, uint64_t *over)
{
    struct gp_seat *seat = gpw_gate_seat(s, ordinal);
    struct gpw_account *a = &s->accounts[ordinal];
    uint64_t held;
    *over = 0;
    if (!seat)
        return true;
    if (!gpw_held_bytes(s, ordinal, &held)) {
        estimate_forget(seat, a);
        return true;
    }
    a->estimated = 0;
    uint64_t overhead = held > a->counted ? held - a->counted : 0;
    uint64_t ahead = overhead + (held ? gpw_held_ahead(s) : 0);
    uint64_t grown = overhead > a->overhead ? overhead - a->overhead : 0;
    if (overhead > a->overhead) {
        gp_seat_memory_charge(seat, overhead - a->overhead);
        a->overhead = overhead;
    }
    if (ahead < a->overhead) {
        gp_seat_memory_give(seat, a->overhead - ahead);
        a->overhead = ahead;
    } else if (ahead > a->overhead && gp_seat_memory_fits(seat, ahead - a->overhead) &&
               gp_seat_memory_take(seat, ahead - a->overhead)) {
        a->overhead = ahead;
    }
    *over = gp_seat_memory_over(seat);
    a->excess = *over ? a->excess + grown : 0;
    return *over == 0;
}

static uint64_t limit_of(struct gpw_session *s, uint32_t ordinal)
{
    return gpw_quota_limit(s, ordinal, UINT64_MAX);
}

void gpw_quota_enforce(struct gpw_session *s, uint32_t ordinal)
{
    struct gpw_account *a = &s->accounts[ordinal];
    uint64_t over;
    bool fits = gpw_quota_settle(s, ordinal, &over);
    if (fits || over <= SLACK || a->excess <= SLACK) {
        a->looks = 0;
        return;
    }
    gpw_memory_trim(s, ordinal);
    if (++a->looks == LOOKS)
        a->spared = gpw_nccl_give_up(s, ordinal, over);
    if (a->looks >= (a->spared ? LOOKS + LOOKS_MORE : LOOKS))
        gpw_session_end(s,
                        "its tenant has %llu MiB of device %u's memory, and may have %llu: "
                        "the driver took %llu MiB for this program beyond the limit",
                        (unsigned long long)((limit_of(s, ordinal) + over) >> 20), ordinal,
                        (unsigned long long)(limit_of(s, ordinal) >> 20),
                        (unsigned long long)(a->excess >> 20));
}

bool gpw_quota_is_doubtful(const struct gpw_session *s, uint32_t ordinal)
{
    const struct gpw_account *a = &s->accounts[ordinal];
    return a->estimated || (a->looks && a->looks < LOOKS);
}

bool gpw_quota_reconcile(struct gpw_session *s, uint32_t ordinal)
{
    uint64_t over;
    return gpw_quota_settle(s, ordinal, &over);
}

int gpw_current_ordinal(struct gpw_session *s)
{
    CUdevice device;
    if (s->driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return -1;
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->devices[i] == device)
            return (int)i;
    return -1;
}

CUresult gpw_device_take(struct gpw_session *s, CUdevice ordinal, CUdevice *device)
{
    if (ordinal < 0 || (uint32_t)ordinal >= s->device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = s->devices[ordinal];
    return CUDA_SUCCESS;
}

CUresult gpw_location_check(struct gpw_session *s, CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE
               ? gpw_device_take(s, location->id, &location->id)
               : CUDA_SUCCESS;
}

bool gpw_location_take(struct gpw_session *s, CUmemLocation *location)
{
    return gpw_location_check(s, location) == CUDA_SUCCESS;
}

CUresult gpw_access_take(struct gpw_session *s, const CUmemAccessDesc *from, size_t count,
                         CUmemAccessDesc *to, size_t room)
{
    if (count > room)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        to[i] = from[i];
        if (to[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_NOT_SUPPORTED; /* the host that would have access is this one */
        CUresult r = gpw_location_check(s, &to[i].location);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

void gpw_location_give(struct gpw_session *s, CUmemLocation *location)
{
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->devices[i] == location->id) {
            location->id = (int)i;
            return;
        }
}
