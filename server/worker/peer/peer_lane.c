/* What a context needs to exchange bytes with other workers. */
#include "peer_internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "budget.h"
#include "gate.h"
#include "quota.h"

#define LANE_SLOTS_BYTES (2 * GPW_LANE_SLOTS * (size_t)GP_CHUNK_MAX)
#define LANE_WORDS_BYTES (2 * GPW_LANE_WORDS * sizeof(uint32_t))
#define LANE_PINNED (LANE_SLOTS_BYTES + LANE_WORDS_BYTES)

static void lane_free(struct gpw_session *s, struct gpw_lane *lane)
{
    for (unsigned i = 0; i < 2 * GPW_LANE_SLOTS; i++)
        if (lane->slots[i].event)
            s->driver->cuEventDestroy_v2(lane->slots[i].event);
    if (lane->in)
        s->driver->cuStreamDestroy_v2(lane->in);
    if (lane->out)
        s->driver->cuStreamDestroy_v2(lane->out);
    if (lane->pinned)
        s->driver->cuMemFreeHost(lane->pinned);
    if (lane->registered)
        s->driver->cuMemHostUnregister(lane->bytes);
    if (lane->bytes)
        munmap(lane->bytes, LANE_SLOTS_BYTES);
    gpw_budget_give(s, GPW_USE_STAGING, LANE_PINNED);
    free(lane);
}

static void ring_add(struct gpw_lane_ring *ring, struct gpw_lane_slot *slot)
{
    slot->next = NULL;
    *ring->end = slot;
    ring->end = &slot->next;
}

/* Ordinary memory: a transport may ask the kernel of it what it may not of a driver's own. */
static CUresult lane_bytes(struct gpw_session *s, struct gpw_lane *lane)
{
    void *bytes = mmap(NULL, LANE_SLOTS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    if (bytes == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lane->bytes = bytes;
    madvise(bytes, LANE_SLOTS_BYTES, MADV_HUGEPAGE);
    CUresult r = s->driver->cuMemHostRegister_v2(bytes, LANE_SLOTS_BYTES,
                                                 CU_MEMHOSTREGISTER_PORTABLE);
    lane->registered = r == CUDA_SUCCESS;
    return r;
}

static CUresult lane_fill(struct gpw_session *s, struct gpw_lane *lane)
{
    struct gpw_driver *d = s->driver;
    CUresult r = d->cuMemHostAlloc(&lane->pinned, LANE_WORDS_BYTES,
                                   CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (r == CUDA_SUCCESS)
        r = lane_bytes(s, lane);
    if (r == CUDA_SUCCESS)
        r = d->cuStreamCreate(&lane->in, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        r = d->cuStreamCreate(&lane->out, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < 2 * GPW_LANE_SLOTS && r == CUDA_SUCCESS; i++) {
        struct gpw_lane_slot *slot = &lane->slots[i];
        slot->memory = (char *)lane->bytes + i * GP_CHUNK_MAX;
        r = d->cuEventCreate(&slot->event, CU_EVENT_DISABLE_TIMING);
        ring_add(i < GPW_LANE_SLOTS ? &lane->free_in : &lane->free_out, slot);
    }
    if (r == CUDA_SUCCESS) {
        lane->words = lane->pinned;
        lane->marks = lane->words + GPW_LANE_WORDS;
        r = d->cuMemHostGetDevicePointer_v2(&lane->words_device, lane->words, 0);
    }
    return r;
}

/* Made whole before the first stream of the context is blocked: to allocate pinned memory
 * may wait for all streams. */
static struct gpw_lane *lane_new(struct gpw_session *s, CUcontext context)
{
    struct gpw_lane *lane = calloc(1, sizeof *lane);
    if (!lane || !gpw_budget_take(s, GPW_USE_STAGING, LANE_PINNED)) {
        free(lane);
        return NULL;
    }
    lane->all = s->peers;
    lane->context = context;
    int ordinal = gpw_current_ordinal(s);
    lane->seat = ordinal >= 0 ? gpw_gate_seat(s, (uint32_t)ordinal) : NULL;
    lane->free_in.end = &lane->free_in.first;
    lane->free_out.end = &lane->free_out.first;
    /* a capture in global mode elsewhere forbids it; our own mode says that it is meant */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    s->driver->cuThreadExchangeStreamCaptureMode(&mode);
    CUresult r = lane_fill(s, lane);
    if (r != CUDA_SUCCESS) {
        gpw_log("warn", "no pinned memory to exchange bytes with other workers (CUDA error %d)",
                (int)r);
        lane_free(s, lane);
        lane = NULL;
    }
    s->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return lane;
}

struct gpw_lane *gpw_lane_here(struct gpw_session *s)
{
    CUcontext context = NULL;
    if (s->driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return NULL;
    for (struct gpw_lane *lane = s->peers->lanes; lane; lane = lane->next)
        if (lane->context == context)
            return lane;
    struct gpw_lane *lane = lane_new(s, context);
    if (lane) {
        lane->next = s->peers->lanes;
        s->peers->lanes = lane;
    }
    return lane;
}

/* What a slot waits for goes on by itself but for what another worker has to send, or to take: who
 * stops in the middle of that loses its link. The lock is held, and let go. */
static void lane_wait(struct gpw_lane *lane)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += GPW_PEER_ENOUGH_SECONDS;
    while (lane->busy &&
           pthread_cond_timedwait(&lane->all->slot_free, &lane->all->lock, &until) == 0)
        ;
    if (lane->busy)
        gpw_peers_give_up(lane->all);
    while (lane->busy)
        pthread_cond_wait(&lane->all->slot_free, &lane->all->lock);
}

void gpw_lane_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_lane **at = &s->peers->lanes;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    struct gpw_lane *lane = *at;
    if (!lane)
        return;
    *at = lane->next;
    pthread_mutex_lock(&lane->all->lock);
    lane_wait(lane);
    pthread_mutex_unlock(&lane->all->lock);
    lane_free(s, lane);
}

int gpw_lane_word_take(struct gpw_lane *lane)
{
    for (unsigned i = 0; i < GPW_LANE_WORDS / 64; i++) {
        if (~lane->words_used[i] == 0)
            continue;
        unsigned bit = (unsigned)__builtin_ctzll(~lane->words_used[i]), word = 64 * i + bit;
        lane->words_used[i] |= UINT64_C(1) << bit;
        __atomic_store_n(&lane->words[word], 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&lane->marks[word], 0, __ATOMIC_SEQ_CST);
        return (int)word;
    }
    return -1;
}

void gpw_lane_word_give(struct gpw_lane *lane, unsigned word)
{
    lane->words_used[word / 64] &= ~(UINT64_C(1) << word % 64);
}

CUdeviceptr gpw_lane_word_at(const struct gpw_lane *lane, unsigned word)
{
    return lane->words_device + word * sizeof(uint32_t);
}

CUdeviceptr gpw_lane_mark_at(const struct gpw_lane *lane, unsigned word)
{
    return gpw_lane_word_at(lane, GPW_LANE_WORDS + word);
}

struct gpw_lane_slot *gpw_lane_slot_take(struct gpw_lane *lane, bool in, bool wait)
{
    struct gpw_lane_ring *ring = in ? &lane->free_in : &lane->free_out;
    while (!ring->first && wait)
        pthread_cond_wait(&lane->all->slot_free, &lane->all->lock);
    struct gpw_lane_slot *slot = ring->first;
    if (!slot)
        return NULL;
    ring->first = slot->next;
    if (!ring->first)
        ring->end = &ring->first;
    lane->busy++;
    return slot;
}

void gpw_lane_slot_give(struct gpw_lane *lane, bool in, struct gpw_lane_slot *slot)
{
    ring_add(in ? &lane->free_in : &lane->free_out, slot);
    lane->busy--;
    pthread_cond_broadcast(&lane->all->slot_free);
}
