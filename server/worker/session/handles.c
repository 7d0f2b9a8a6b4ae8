#include "handles_internal.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "graph.h"
#include "green.h"

struct gpw_handles *gpw_handles_new(void)
{
    struct gpw_handles *handles = calloc(1, sizeof *handles);
    if (handles)
        handles->changes = 1;
    return handles;
}

void gpw_handles_free(struct gpw_handles *handles)
{
    if (!handles)
        return;
    for (unsigned kind = 0; kind < GP_HANDLE_KINDS; kind++)
        free(handles->slots[kind]);
    free(handles->named);
    free(handles);
}

/* What the driver keeps of the host's memory for a stream, an event, a function. */
#define OBJECT_BYTES 1024u

static void object_made(struct gpw_session *s, enum gp_handle_kind kind, struct slot *slot)
{
    slot->bytes = OBJECT_BYTES;
    if (kind == GP_HANDLE_MODULE || kind == GP_HANDLE_LIBRARY) {
        slot->bytes += s->handles->next_image;
        s->handles->next_image = 0;
    }
    if (gpw_budget_take(s, GPW_USE_OBJECTS, slot->bytes))
        return;
    gpw_budget_force(s, GPW_USE_OBJECTS, slot->bytes); /* it is there, and is given back */
    gpw_session_end(s,
                    "it has made more objects than fit into the host memory that a session may "
                    "have (%llu MiB)",
                    (unsigned long long)(gpw_budget_limit(s, GPW_BUDGET_HOST_MEMORY) >> 20));
}

static void object_gone(struct gpw_session *s, const struct slot *slot)
{
    if (slot->state == SLOT_LIVE)
        gpw_budget_give(s, GPW_USE_OBJECTS, slot->bytes);
}

void gpw_slot_free(struct gpw_session *s, struct slot *slot)
{
    object_gone(s, slot);
    slot->state = SLOT_FREE;
    s->handles->changes++;
}

/* The slot of an id, growing the table if `grow`; NULL when the id cannot be. */
struct slot *gpw_slot_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool grow)
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
        if (!gpw_budget_take(s, GPW_USE_OBJECTS, bytes))
            return NULL;
        struct slot *more = realloc(t->slots[kind], room * sizeof *more);
        if (!more) {
            gpw_budget_give(s, GPW_USE_OBJECTS, bytes);
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
    struct slot *slot = gpw_slot_of(s, kind, id, true);
    /* a failed creation leaves no object; a newer generation says that the client
     * has let go of the older one without a call */
    return slot && (slot->state != SLOT_LIVE || slot->generation != gp_handle_generation(id));
}

/* --- lives ---------------------------------------------------------------------- */

struct slot *gpw_slot_live(struct gpw_session *s, uint64_t id, uint64_t birth);

/* A graph under capture is the driver's, which may have given it up. */
static bool still_captured(struct gpw_session *s, const struct slot *graph)
{
    const struct slot *stream = gpw_slot_live(s, graph->parent, graph->parent_birth);
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph real = NULL;
    return stream &&
           gpw_capture_of(s, (CUstream)stream->real, &state, &id, &real) == CUDA_SUCCESS &&
           state == CU_STREAM_CAPTURE_STATUS_ACTIVE && id == graph->capture &&
           (uint64_t)real == graph->real;
}

/* Parents are older than their children, so this ends. */
bool gpw_slot_lives(struct gpw_session *s, const struct slot *slot)
{
    if (slot->state != SLOT_LIVE)
        return false;
    if (slot->capture)
        return still_captured(s, slot);
    return (!slot->parent || gpw_slot_live(s, slot->parent, slot->parent_birth)) &&
           (!slot->context || gpw_slot_live(s, slot->context, slot->context_birth));
}

/* The same object has several ids where the driver answers with it again. */
static bool has_aliases(enum gp_handle_kind kind)
{
    return kind == GP_HANDLE_GRAPH || kind == GP_HANDLE_MEMPOOL || kind == GP_HANDLE_MODULE;
}

/* Any of an object's ids; NULL: it has none. */
static struct slot *alias_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t birth)
{
    uint32_t room = s->handles->aliased && has_aliases(kind) ? s->handles->rooms[kind] : 0;
    for (uint32_t index = 1; index < room; index++) {
        struct slot *slot = &s->handles->slots[kind][index];
        if (slot->birth == birth && gpw_slot_lives(s, slot))
            return slot;
    }
    return NULL;
}

/* NULL unless it and all that it belongs to live. With `birth`, that object and no later one
 * of its id: a primary context has the same one each time, a client's ids are its own affair; it may
 * have another id by now. */
struct slot *gpw_slot_live(struct gpw_session *s, uint64_t id, uint64_t birth)
{
    enum gp_handle_kind kind = (enum gp_handle_kind)gp_handle_kind(id);
    struct slot *slot = gpw_slot_of(s, kind, id, false);
    bool same = slot && slot->generation == gp_handle_generation(id) &&
                (!birth || slot->birth == birth);
    if (!same)
        return birth ? alias_of(s, kind, birth) : NULL;
    return gpw_slot_lives(s, slot) ? slot : NULL;
}

/* Of what an object is bound to now; one that is not there is none that can come to life. */
static uint64_t birth_of(struct gpw_session *s, uint64_t id)
{
    const struct slot *slot = gpw_slot_live(s, id, 0);
    return slot ? slot->birth : UINT64_MAX;
}

void gpw_slot_bind_parent(struct gpw_session *s, struct slot *slot, uint64_t parent)
{
    s->handles->changes++;
    slot->parent = parent;
    slot->parent_birth = parent ? birth_of(s, parent) : 0;
}

static void bind_context(struct gpw_session *s, struct slot *slot, uint64_t context)
{
    s->handles->changes++;
    slot->context = context;
    slot->context_birth = context ? birth_of(s, context) : 0;
}

uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    for (uint32_t index = 1; real && index < s->handles->rooms[kind]; index++) {
        const struct slot *slot = &s->handles->slots[kind][index];
        if (slot->real == real && gpw_slot_lives(s, slot))
            return gp_handle_in_session(gp_handle_make(kind, index, slot->generation), s->index);
    }
    return 0;
}

/* Of the current one, or of the primary one that it is a part of. */
static uint64_t context_id(struct gpw_session *s, bool root)
{
    CUcontext context = NULL;
    s->driver->cuCtxGetCurrent(&context);
    if (root)
        context = gpw_context_root(s, context);
    return gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)context);
}

/* A bit for each context; from 63 on they share one. */
uint64_t gpw_context_bit(uint64_t id)
{
    uint32_t index = gp_handle_index(id);
    return id ? UINT64_C(1) << (index < 63 ? index : 63) : 0;
}

uint64_t gpw_handle_context_bit(struct gpw_session *s)
{
    return gpw_context_bit(context_id(s, false));
}

void gpw_handle_bind(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t parent,
                     bool of_context, uint16_t tag)
{
    struct slot *slot = gpw_slot_of(s, kind, id, false);
    if (!slot || slot->state != SLOT_LIVE)
        return;
    slot->tag = tag;
    if (of_context) /* of a green context, only streams are its own */
        bind_context(s, slot, context_id(s, kind != GP_HANDLE_STREAM));
    if (kind == GP_HANDLE_GRAPH || kind == GP_HANDLE_GRAPH_EXEC)
        gpw_slot_bind_graph(s, slot, parent);
    else if (kind == GP_HANDLE_GRAPH_NODE)
        gpw_slot_bind_node(s, slot, parent);
    else
        gpw_slot_bind_parent(s, slot, parent);
}

static void real_gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    for (uint32_t index = 1; has_aliases(kind) && index < s->handles->rooms[kind]; index++) {
        struct slot *slot = &s->handles->slots[kind][index];
        if (slot->state == SLOT_LIVE && slot->real == real)
            gpw_slot_free(s, slot);
    }
}

/* The driver has let the object go. */
static void gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    real_gone(s, kind, real);
    if (kind == GP_HANDLE_GRAPH)
        gpw_nodes_gone(s, real);
}

/* The client names another object by an id that it has let go of without a call. That is right
 * where the driver's object has gone with another, or has other ids; what it still has is
 * charged on. */
static void object_replaced(struct gpw_session *s, enum gp_handle_kind kind,
                            const struct slot *slot)
{
    bool shared = kind == GP_HANDLE_FUNCTION || kind == GP_HANDLE_GRAPH ||
                  (kind == GP_HANDLE_MODULE && slot->parent);
    if (shared || !gpw_slot_lives(s, slot))
        object_gone(s, slot);
}

void gpw_handle_next_image(struct gpw_session *s, uint64_t bytes)
{
    s->handles->next_image = bytes;
}

/* An object that has an id is the same by another. */
static uint64_t birth_new(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    uint64_t before = has_aliases(kind) ? gpw_handle_find(s, kind, real) : 0;
    s->handles->aliased |= before != 0;
    return before ? birth_of(s, before) : ++s->handles->births;
}

void gpw_handle_put(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t real,
                    CUresult result)
{
    struct slot *slot = gpw_slot_of(s, kind, id, true);
    if (!slot)
        return;
    if (kind == GP_HANDLE_GRAPH && real) /* the driver may have given a capture up */
        gpw_graph_stale_gone(s, real);
    object_replaced(s, kind, slot);
    *slot = (struct slot){.generation = gp_handle_generation(id),
                          .birth = birth_new(s, kind, real)};
    slot->real = real;
    if (result == CUDA_SUCCESS && real)
        object_made(s, kind, slot);
    slot->state = result != CUDA_SUCCESS ? SLOT_FAILED : real ? SLOT_LIVE : SLOT_FREE;
    slot->result = (uint16_t)result;
    s->handles->changes++;
}

/* --- look-up ------------------------------------------------------------------------ */

static CUresult not_live(enum gp_handle_kind kind)
{
    return (CUresult)gp_handle_not_live[kind];
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
        const struct named *n = gpw_named_of(s, kind, id);
        if (!n || !gpw_handle_find(s, GP_HANDLE_GRAPH, n->graph))
            return not_live(kind);
        *real = n->real;
        return CUDA_SUCCESS;
    }
    struct slot *slot = gpw_slot_of(s, kind, id, false);
    if (!slot || slot->state == SLOT_FREE || slot->generation != gp_handle_generation(id))
        return not_live(kind);
    if (slot->state == SLOT_FAILED)
        return (CUresult)slot->result;
    if (!gpw_slot_lives(s, slot))
        return not_live(kind);
    *real = slot->real;
    *found = slot;
    return CUDA_SUCCESS;
}

/* Where it is kept what was found; NULL: nowhere. Streams and functions belong to contexts, modules and
 * libraries only, which change by calls of the client: a graph that is captured the driver may give up. */
static struct found *found_at(struct gpw_handles *t, enum gp_handle_kind kind, uint64_t id)
{
    struct found *all = kind == GP_HANDLE_STREAM     ? t->streams
                        : kind == GP_HANDLE_FUNCTION ? t->functions
                                                     : NULL;
    return all ? &all[gp_handle_index(id) % FOUND_KEPT] : NULL;
}

CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real)
{
    struct slot *slot;
    struct found *found = found_at(s->handles, kind, id);
    if (found && found->id == id && found->changes == s->handles->changes) {
        *real = found->real;
        return CUDA_SUCCESS;
    }
    CUresult r = look_up(s, kind, id, nullable, real, &slot);
    if (found && slot)
        *found = (struct found){id, slot->real, s->handles->changes};
    return r;
}

CUresult gpw_handle_get_kernel(struct gpw_session *s, uint64_t id, bool nullable, uint64_t *real)
{
    struct slot *slot;
    CUresult r = look_up(s, GP_HANDLE_FUNCTION, id, nullable, real, &slot);
    return r == CUDA_SUCCESS && slot && slot->tag != GPW_TAG_KERNEL ? CUDA_ERROR_INVALID_HANDLE : r;
}

CUresult gpw_handle_take(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *real)
{
    struct slot *slot;
    CUresult r = look_up(s, kind, id, nullable, real, &slot);
    if (!slot)
        return r;
    /* it goes with its capture, with its node, or with what it is a level or plane of */
    bool part = (kind == GP_HANDLE_GRAPH || kind == GP_HANDLE_ARRAY) && slot->parent;
    if (slot->capture || part)
        return not_live(kind);
    gpw_slot_free(s, slot);
    gone(s, kind, slot->real);
    if (kind == GP_HANDLE_CONTEXT)
        gpw_graphs_of_context_gone(s, id);
    return r;
}

uint64_t gpw_handle_context_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real,
                               uint16_t *tag)
{
    const struct slot *slot = gpw_slot_live(s, gpw_handle_find(s, kind, real), 0);
    *tag = slot ? slot->tag : 0;
    while (slot && !slot->context)
        slot = gpw_slot_live(s, slot->parent, slot->parent_birth);
    return slot ? slot->context : 0;
}

void gpw_handle_each(struct gpw_session *s, enum gp_handle_kind kind,
                     void (*visit)(struct gpw_session *, uint64_t, uint64_t, void *), void *arg)
{
    for (uint32_t index = 1; index < s->handles->rooms[kind]; index++) {
        struct slot slot = s->handles->slots[kind][index];
        if (gpw_slot_lives(s, &slot))
            visit(s, gp_handle_in_session(gp_handle_make(kind, index, slot.generation), s->index),
                  slot.real, arg);
    }
}
