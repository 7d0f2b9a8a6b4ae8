#include "handles.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"

enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_FAILED };

struct slot {
    uint64_t real;
    uint32_t generation;
    uint16_t state;  /* slot_state */
    uint16_t result; /* of a failed creation */
};

/* Named by the worker: what it stands for, by index. */
struct named {
    uint64_t *real;
    uint32_t count, room;
};

struct gpw_handles {
    struct slot *slots[GP_HANDLE_KINDS];
    uint32_t rooms[GP_HANDLE_KINDS];
    struct named named[GP_HANDLE_KINDS];
};

struct gpw_handles *gpw_handles_new(void)
{
    return calloc(1, sizeof(struct gpw_handles));
}

void gpw_handles_free(struct gpw_handles *handles)
{
    if (!handles)
        return;
    for (unsigned kind = 0; kind < GP_HANDLE_KINDS; kind++) {
        free(handles->slots[kind]);
        free(handles->named[kind].real);
    }
    free(handles);
}

/* What the driver keeps of the host's memory for a stream, an event, a function. */
#define OBJECT_BYTES 1024u

static void object_made(struct gpw_session *s)
{
    if (gpw_budget_take(GPW_BUDGET_OBJECTS, OBJECT_BYTES))
        return;
    gpw_budget_force(GPW_BUDGET_OBJECTS, OBJECT_BYTES); /* it is there, and is given back */
    gpw_session_end(s, "it has made more objects than fit into the host memory that a session may "
                    "have (%llu MiB)", (unsigned long long)(gpw_budget_limit() >> 20));
}

static void object_gone(const struct slot *slot)
{
    if (slot->state == SLOT_LIVE)
        gpw_budget_give(GPW_BUDGET_OBJECTS, OBJECT_BYTES);
}

/* The slot of an id, growing the table if `grow`; NULL when the id cannot be. */
static struct slot *slot_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool grow)
{
    uint32_t index = gp_handle_index(id);
    if (gp_handle_kind(id) != kind || (id & 15) != 0 ||
        id >> (GP_HANDLE_KIND_SHIFT + 6) != (uint64_t)s->index << 1 || index == 0 ||
        index >= GP_HANDLE_INDEX_MAX)
        return NULL;
    struct gpw_handles *t = s->handles;
    if (index >= t->rooms[kind]) {
        if (!grow)
            return NULL;
        uint32_t room = t->rooms[kind] ? t->rooms[kind] : 64;
        while (room <= index)
            room *= 2;
        uint64_t bytes = (room - t->rooms[kind]) * sizeof(struct slot);
        if (!gpw_budget_take(GPW_BUDGET_OBJECTS, bytes))
            return NULL;
        struct slot *more = realloc(t->slots[kind], room * sizeof *more);
        if (!more) {
            gpw_budget_give(GPW_BUDGET_OBJECTS, bytes);
            return NULL;
        }
        memset(more + t->rooms[kind], 0, (room - t->rooms[kind]) * sizeof *more);
        t->slots[kind] = more;
        t->rooms[kind] = room;
    }
    return &t->slots[kind][index];
}

bool gpw_handle_free(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id)
{
    struct slot *slot = slot_of(s, kind, id, true);
    /* a failed creation leaves no object; a newer generation says that the client
     * has let go of the older one without a call */
    return slot && (slot->state != SLOT_LIVE || slot->generation != gp_handle_generation(id));
}

void gpw_handle_put(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t real,
                    CUresult result)
{
    struct slot *slot = slot_of(s, kind, id, true);
    if (!slot)
        return;
    object_gone(slot); /* the client has let go of it without a call */
    slot->real = real;
    slot->generation = gp_handle_generation(id);
    if (result == CUDA_SUCCESS && real)
        object_made(s);
    slot->state = result != CUDA_SUCCESS ? SLOT_FAILED : real ? SLOT_LIVE : SLOT_FREE;
    slot->result = (uint16_t)result;
}

static CUresult not_live(enum gp_handle_kind kind)
{
    return kind == GP_HANDLE_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult look_up(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real, struct slot **found)
{
    *found = NULL;
    if (id == 0 && nullable) {
        *real = 0;
        return CUDA_SUCCESS;
    }
    if (kind == GP_HANDLE_STREAM && id == GP_STREAM_LEGACY) {
        *real = (uint64_t)CU_STREAM_LEGACY;
        return CUDA_SUCCESS;
    }
    if (id & GP_HANDLE_WORKER_NAMED) {
        const struct named *n = &s->handles->named[kind];
        uint32_t index = gp_handle_index(id);
        if (gp_handle_kind(id) != kind || gp_handle_session(id) != s->index || index == 0 ||
            index > n->count)
            return not_live(kind);
        *real = n->real[index - 1];
        return CUDA_SUCCESS;
    }
    struct slot *slot = slot_of(s, kind, id, false);
    if (!slot || slot->state == SLOT_FREE || slot->generation != gp_handle_generation(id))
        return not_live(kind);
    if (slot->state == SLOT_FAILED)
        return (CUresult)slot->result;
    *real = slot->real;
    *found = slot;
    return CUDA_SUCCESS;
}

CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real)
{
    struct slot *slot;
    return look_up(s, kind, id, nullable, real, &slot);
}

CUresult gpw_handle_take(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *real)
{
    struct slot *slot;
    CUresult r = look_up(s, kind, id, nullable, real, &slot);
    if (slot) {
        object_gone(slot);
        slot->state = SLOT_FREE;
    }
    return r;
}

uint64_t gpw_handle_name(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    struct named *n = &s->handles->named[kind];
    uint32_t index = 0;
    while (index < n->count && n->real[index] != real)
        index++;
    if (index == n->count) {
        if (n->count == n->room) {
            uint32_t room = n->room ? 2 * n->room : 64;
            uint64_t bytes = (room - n->room) * sizeof *n->real;
            if (n->count >= GP_HANDLE_INDEX_MAX || !gpw_budget_take(GPW_BUDGET_OBJECTS, bytes))
                return 0;
            uint64_t *more = realloc(n->real, room * sizeof *more);
            if (!more) {
                gpw_budget_give(GPW_BUDGET_OBJECTS, bytes);
                return 0;
            }
            n->real = more;
            n->room = room;
        }
        n->real[n->count++] = real;
    }
    return gp_handle_in_session(gp_handle_make(kind, index + 1, 0), s->index) |
           GP_HANDLE_WORKER_NAMED;
}

void gpw_handle_each(struct gpw_session *s, enum gp_handle_kind kind,
                     void (*visit)(struct gpw_session *, uint64_t, uint64_t, void *), void *arg)
{
    for (uint32_t index = 1; index < s->handles->rooms[kind]; index++) {
        struct slot slot = s->handles->slots[kind][index];
        if (slot.state == SLOT_LIVE)
            visit(s, gp_handle_in_session(gp_handle_make(kind, index, slot.generation), s->index),
                  slot.real, arg);
    }
}
