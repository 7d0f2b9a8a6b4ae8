#include "handles.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "graph.h"

enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_FAILED };

struct slot {
    uint64_t real;
    uint64_t birth;           /* no two objects have the same; ids are used again */
    uint64_t parent, context; /* ids; it lives as long as they do. 0: of none */
    uint64_t parent_birth, context_birth;
    uint64_t contexts; /* of a graph: those that it was captured in, a bit each */
    uint64_t capture;  /* of a graph that is being captured: which; `parent` is the stream */
    uint64_t bytes;    /* of the host's memory that the driver keeps for it */
    uint32_t generation;
    uint16_t state;  /* slot_state */
    uint16_t result; /* of a failed creation */
    uint16_t tag;
};

/* Named by the worker: a node, by index. */
struct named {
    uint64_t real, graph; /* the driver's; 0: gone, its index may be had again */
    uint32_t generation;
};

struct gpw_handles {
    struct slot *slots[GP_HANDLE_KINDS];
    uint32_t rooms[GP_HANDLE_KINDS];
    struct named *named;
    uint32_t named_count, named_room;
    uint64_t births;
    /* what handlers know of the graph whose id is bound next */
    uint64_t next_contexts, next_capture;
    uint64_t next_image; /* bytes of the one that is loaded as the module bound next */
};

struct gpw_handles *gpw_handles_new(void)
{
    return calloc(1, sizeof(struct gpw_handles));
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

static void slot_free(struct gpw_session *s, struct slot *slot)
{
    object_gone(s, slot);
    slot->state = SLOT_FREE;
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
    struct slot *slot = slot_of(s, kind, id, true);
    /* a failed creation leaves no object; a newer generation says that the client
     * has let go of the older one without a call */
    return slot && (slot->state != SLOT_LIVE || slot->generation != gp_handle_generation(id));
}

/* --- lives ---------------------------------------------------------------------- */

static struct slot *slot_live(struct gpw_session *s, uint64_t id, uint64_t birth);

/* A graph under capture is the driver's, which may have given it up. */
static bool still_captured(struct gpw_session *s, const struct slot *graph)
{
    const struct slot *stream = slot_live(s, graph->parent, graph->parent_birth);
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph real = NULL;
    return stream &&
           gpw_capture_of(s, (CUstream)stream->real, &state, &id, &real) == CUDA_SUCCESS &&
           state == CU_STREAM_CAPTURE_STATUS_ACTIVE && id == graph->capture &&
           (uint64_t)real == graph->real;
}

/* Parents are older than their children, so this ends. */
static bool lives(struct gpw_session *s, const struct slot *slot)
{
    if (slot->state != SLOT_LIVE)
        return false;
    if (slot->capture)
        return still_captured(s, slot);
    return (!slot->parent || slot_live(s, slot->parent, slot->parent_birth)) &&
           (!slot->context || slot_live(s, slot->context, slot->context_birth));
}

/* NULL unless it and all that it belongs to live. With `birth`, that object and no later one
 * of its id: a primary context has the same one each time, a client's ids are its own affair. */
static struct slot *slot_live(struct gpw_session *s, uint64_t id, uint64_t birth)
{
    struct slot *slot = slot_of(s, (enum gp_handle_kind)gp_handle_kind(id), id, false);
    return slot && slot->generation == gp_handle_generation(id) &&
                   (!birth || slot->birth == birth) && lives(s, slot)
               ? slot
               : NULL;
}

/* Of what an object is bound to now; one that is not there is none that can come to life. */
static uint64_t birth_of(struct gpw_session *s, uint64_t id)
{
    const struct slot *slot = slot_live(s, id, 0);
    return slot ? slot->birth : UINT64_MAX;
}

static void bind_parent(struct gpw_session *s, struct slot *slot, uint64_t parent)
{
    slot->parent = parent;
    slot->parent_birth = parent ? birth_of(s, parent) : 0;
}

static void bind_context(struct gpw_session *s, struct slot *slot, uint64_t context)
{
    slot->context = context;
    slot->context_birth = context ? birth_of(s, context) : 0;
}

uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    for (uint32_t index = 1; real && index < s->handles->rooms[kind]; index++) {
        const struct slot *slot = &s->handles->slots[kind][index];
        if (slot->real == real && lives(s, slot))
            return gp_handle_in_session(gp_handle_make(kind, index, slot->generation), s->index);
    }
    return 0;
}

static uint64_t current_context(struct gpw_session *s)
{
    CUcontext context = NULL;
    s->driver->cuCtxGetCurrent(&context);
    return gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)context);
}

/* A bit for each context; from 63 on they share one. */
static uint64_t context_bit(uint64_t id)
{
    uint32_t index = gp_handle_index(id);
    return id ? UINT64_C(1) << (index < 63 ? index : 63) : 0;
}

uint64_t gpw_handle_context_bit(struct gpw_session *s)
{
    return context_bit(current_context(s));
}

static void bind_graph(struct gpw_session *s, struct slot *slot, uint64_t parent)
{
    const struct slot *from = slot_live(s, parent, 0);
    if (gp_handle_kind(parent) == GP_HANDLE_GRAPH && from)
        slot->contexts = from->contexts;
    slot->contexts |= s->handles->next_contexts;
    slot->capture = s->handles->next_capture;
    bind_parent(s, slot, slot->capture ? parent : 0);
    gpw_handle_next_graph(s, 0, 0);
}

void gpw_handle_bind(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t parent,
                     bool of_context, uint16_t tag)
{
    struct slot *slot = slot_of(s, kind, id, false);
    if (!slot || slot->state != SLOT_LIVE)
        return;
    slot->tag = tag;
    if (of_context)
        bind_context(s, slot, current_context(s));
    if (kind == GP_HANDLE_GRAPH || kind == GP_HANDLE_GRAPH_EXEC)
        bind_graph(s, slot, parent);
    else
        bind_parent(s, slot, parent);
}

/* The same object has several ids where the driver answers with it again. */
static bool has_aliases(enum gp_handle_kind kind)
{
    return kind == GP_HANDLE_GRAPH || kind == GP_HANDLE_MEMPOOL || kind == GP_HANDLE_MODULE;
}

static void real_gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    for (uint32_t index = 1; has_aliases(kind) && index < s->handles->rooms[kind]; index++) {
        struct slot *slot = &s->handles->slots[kind][index];
        if (slot->state == SLOT_LIVE && slot->real == real)
            slot_free(s, slot);
    }
}

/* --- graphs ----------------------------------------------------------------------- */

static void nodes_gone(struct gpw_session *s, uint64_t graph)
{
    for (uint32_t i = 0; i < s->handles->named_count; i++) {
        struct named *n = &s->handles->named[i];
        if (n->graph != graph || !n->real)
            continue;
        n->real = 0;
        n->generation = (n->generation + 1) & ((1u << GP_HANDLE_GENERATION_BITS) - 1);
    }
}

/* The driver has let the object go. */
static void gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    real_gone(s, kind, real);
    if (kind == GP_HANDLE_GRAPH)
        nodes_gone(s, real);
}

void gpw_handle_next_graph(struct gpw_session *s, uint64_t contexts, uint64_t capture)
{
    s->handles->next_contexts = contexts;
    s->handles->next_capture = capture;
}

void gpw_handle_capture_over(struct gpw_session *s, uint64_t real)
{
    for (uint32_t index = 1; index < s->handles->rooms[GP_HANDLE_GRAPH]; index++) {
        struct slot *slot = &s->handles->slots[GP_HANDLE_GRAPH][index];
        if (slot->state != SLOT_LIVE || !slot->capture || lives(s, slot))
            continue;
        if (real && slot->real == real) { /* the application's from now on */
            slot->contexts = s->handles->next_contexts;
            slot->parent = slot->capture = 0;
        } else {
            slot_free(s, slot);
            nodes_gone(s, slot->real);
        }
    }
}

static void graphs_gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t bit)
{
    for (uint32_t index = 1; index < s->handles->rooms[kind]; index++) {
        struct slot *slot = &s->handles->slots[kind][index];
        if (slot->state != SLOT_LIVE || !(slot->contexts & bit))
            continue;
        slot_free(s, slot);
        if (kind == GP_HANDLE_GRAPH)
            nodes_gone(s, slot->real);
    }
}

static void context_gone(struct gpw_session *s, uint64_t id)
{
    graphs_gone(s, GP_HANDLE_GRAPH, context_bit(id));
    graphs_gone(s, GP_HANDLE_GRAPH_EXEC, context_bit(id));
}

/* A graph of this address is another one, if it was being captured and is no more. */
static void stale_graph_gone(struct gpw_session *s, uint64_t real)
{
    for (uint32_t index = 1; index < s->handles->rooms[GP_HANDLE_GRAPH]; index++) {
        struct slot *slot = &s->handles->slots[GP_HANDLE_GRAPH][index];
        if (slot->state == SLOT_LIVE && slot->capture && slot->real == real && !lives(s, slot)) {
            slot_free(s, slot);
            nodes_gone(s, real);
        }
    }
}

/* The client names another object by an id that it has let go of without a call. That is right
 * where the driver's object has gone with another, or has other ids; what it still has is
 * charged on. */
static void object_replaced(struct gpw_session *s, enum gp_handle_kind kind,
                            const struct slot *slot)
{
    bool shared = kind == GP_HANDLE_FUNCTION || kind == GP_HANDLE_GRAPH ||
                  (kind == GP_HANDLE_MODULE && slot->parent);
    if (shared || !lives(s, slot))
        object_gone(s, slot);
}

void gpw_handle_next_image(struct gpw_session *s, uint64_t bytes)
{
    s->handles->next_image = bytes;
}

void gpw_handle_put(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t real,
                    CUresult result)
{
    struct slot *slot = slot_of(s, kind, id, true);
    if (!slot)
        return;
    if (kind == GP_HANDLE_GRAPH && real) /* the driver may have given a capture up */
        stale_graph_gone(s, real);
    object_replaced(s, kind, slot);
    *slot = (struct slot){
        .real = real, .generation = gp_handle_generation(id), .birth = ++s->handles->births};
    if (result == CUDA_SUCCESS && real)
        object_made(s, kind, slot);
    slot->state = result != CUDA_SUCCESS ? SLOT_FAILED : real ? SLOT_LIVE : SLOT_FREE;
    slot->result = (uint16_t)result;
}

/* --- look-up ------------------------------------------------------------------------ */

static CUresult not_live(enum gp_handle_kind kind)
{
    return (CUresult)gp_handle_not_live[kind];
}

static const struct named *named_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id)
{
    uint32_t index = gp_handle_index(id);
    if (kind != GP_HANDLE_GRAPH_NODE || gp_handle_kind(id) != kind ||
        gp_handle_session(id) != s->index || index == 0 || index > s->handles->named_count)
        return NULL;
    const struct named *n = &s->handles->named[index - 1];
    return n->real && n->generation == gp_handle_generation(id) ? n : NULL;
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
        const struct named *n = named_of(s, kind, id);
        if (!n || !gpw_handle_find(s, GP_HANDLE_GRAPH, n->graph))
            return not_live(kind);
        *real = n->real;
        return CUDA_SUCCESS;
    }
    struct slot *slot = slot_of(s, kind, id, false);
    if (!slot || slot->state == SLOT_FREE || slot->generation != gp_handle_generation(id))
        return not_live(kind);
    if (slot->state == SLOT_FAILED)
        return (CUresult)slot->result;
    if (!lives(s, slot))
        return not_live(kind);
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
    if (slot->capture) /* it goes with its capture */
        return CUDA_ERROR_INVALID_VALUE;
    slot_free(s, slot);
    gone(s, kind, slot->real);
    if (kind == GP_HANDLE_CONTEXT)
        context_gone(s, id);
    return r;
}

/* Where a node is, or may be put; the count where there is no room yet. */
static uint32_t named_index(const struct gpw_handles *h, uint64_t real, uint64_t graph)
{
    uint32_t free_one = h->named_count;
    for (uint32_t i = 0; i < h->named_count; i++) {
        if (h->named[i].real == real && h->named[i].graph == graph)
            return i;
        if (!h->named[i].real && free_one == h->named_count)
            free_one = i;
    }
    return free_one;
}

static bool named_grow(struct gpw_session *s, struct gpw_handles *h)
{
    if (h->named_count < h->named_room)
        return true;
    uint32_t room = h->named_room ? 2 * h->named_room : 64;
    if (room > GP_HANDLE_INDEX_MAX)
        return false;
    uint64_t bytes = (room - h->named_room) * sizeof *h->named;
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, bytes))
        return false;
    struct named *more = realloc(h->named, room * sizeof *more);
    if (!more) {
        gpw_budget_give(s, GPW_USE_OBJECTS, bytes);
        return false;
    }
    h->named = more;
    h->named_room = room;
    return true;
}

uint64_t gpw_handle_name(struct gpw_session *s, uint64_t real, uint64_t graph)
{
    struct gpw_handles *h = s->handles;
    uint32_t index = named_index(h, real, graph);
    if (index == h->named_count) {
        if (!named_grow(s, h))
            return 0;
        h->named[h->named_count++] = (struct named){.generation = 0};
    }
    h->named[index].real = real;
    h->named[index].graph = graph;
    return gp_handle_in_session(
               gp_handle_make(GP_HANDLE_GRAPH_NODE, index + 1, h->named[index].generation),
               s->index) |
           GP_HANDLE_WORKER_NAMED;
}

void gpw_handle_each(struct gpw_session *s, enum gp_handle_kind kind,
                     void (*visit)(struct gpw_session *, uint64_t, uint64_t, void *), void *arg)
{
    for (uint32_t index = 1; index < s->handles->rooms[kind]; index++) {
        struct slot slot = s->handles->slots[kind][index];
        if (lives(s, &slot))
            visit(s, gp_handle_in_session(gp_handle_make(kind, index, slot.generation), s->index),
                  slot.real, arg);
    }
}
