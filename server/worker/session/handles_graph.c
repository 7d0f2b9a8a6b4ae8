/* Handles of graphs and of their nodes: which contexts they go with, and when they are gone. */
#include <stdlib.h>

#include "budget.h"
#include "handles_internal.h"

const struct named *gpw_named_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id)
{
    uint32_t index = gp_handle_index(id);
    if (kind != GP_HANDLE_GRAPH_NODE || gp_handle_kind(id) != kind ||
        !(id & GP_HANDLE_WORKER_NAMED) || gp_handle_session(id) != s->index || index == 0 ||
        index > s->handles->named_count)
        return NULL;
    const struct named *n = &s->handles->named[index - 1];
    return n->real && n->generation == gp_handle_generation(id) ? n : NULL;
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
    uint64_t own = gpw_handle_find(s, GP_HANDLE_GRAPH_NODE, real);
    if (own)
        return own;
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

uint64_t gpw_handle_graph_of(struct gpw_session *s, uint64_t node)
{
    uint64_t id = gpw_handle_find(s, GP_HANDLE_GRAPH_NODE, node);
    if (id)
        return gpw_slot_of(s, GP_HANDLE_GRAPH_NODE, id, false)->parent;
    uint64_t graph = 0; /* a name may be left of another node, which went with its graph */
    for (uint32_t i = 0; !graph && i < s->handles->named_count; i++)
        if (s->handles->named[i].real == node)
            graph = gpw_handle_find(s, GP_HANDLE_GRAPH, s->handles->named[i].graph);
    return graph;
}

uint64_t gpw_handle_birth(struct gpw_session *s, uint64_t id)
{
    const struct slot *slot = gpw_slot_live(s, id, 0);
    return slot ? slot->birth : 0;
}

uint64_t gpw_handle_real(struct gpw_session *s, uint64_t id, uint64_t birth)
{
    const struct slot *slot = birth ? gpw_slot_live(s, id, birth) : NULL;
    return slot ? slot->real : 0;
}

uint64_t gpw_handle_next_birth(const struct gpw_session *s)
{
    return s->handles->births + 1;
}

uint64_t gpw_handle_graph_around(struct gpw_session *s, uint64_t graph)
{
    const struct slot *slot = gp_handle_kind(graph) == GP_HANDLE_GRAPH ? gpw_slot_live(s, graph, 0)
                                                                       : NULL;
    uint64_t parent = slot && !slot->capture ? slot->parent : 0;
    if (gp_handle_kind(parent) != GP_HANDLE_GRAPH_NODE)
        return gp_handle_kind(parent) == GP_HANDLE_GRAPH ? parent : 0;
    const struct slot *node = gpw_slot_live(s, parent, 0);
    return node ? node->parent : 0;
}

void gpw_handle_share(struct gpw_session *s, uint64_t node, uint64_t bytes)
{
    struct slot *slot = gpw_slot_live(s, node, 0);
    if (slot)
        slot->share = bytes;
}

uint64_t gpw_handle_share_of(struct gpw_session *s, uint64_t node, uint64_t *graph)
{
    const struct slot *slot = gpw_slot_live(s, node, 0);
    *graph = slot ? slot->parent : 0;
    return slot ? slot->share : 0;
}

/* --- graphs ----------------------------------------------------------------------- */

static void named_gone(struct named *n)
{
    n->real = 0;
    n->generation = (n->generation + 1) & ((1u << GP_HANDLE_GENERATION_BITS) - 1);
}

static bool is_node_of(struct gpw_session *s, const struct slot *node, uint64_t graph)
{
    const struct slot *of = gpw_slot_of(s, GP_HANDLE_GRAPH, node->parent, false);
    return of && of->birth == node->parent_birth && of->real == graph;
}

/* With a graph, or a node, those go that were its children. */
static void orphans_gone(struct gpw_session *s)
{
    uint64_t graph = 0; /* the one looked up last: nodes of one lie together */
    bool lives = false;
    for (uint32_t i = 0; i < s->handles->named_count; i++) {
        struct named *n = &s->handles->named[i];
        if (!n->real)
            continue;
        if (n->graph != graph)
            lives = gpw_handle_find(s, GP_HANDLE_GRAPH, n->graph) != 0;
        graph = n->graph;
        if (!lives)
            named_gone(n);
    }
}

void gpw_nodes_gone(struct gpw_session *s, uint64_t graph)
{
    for (uint32_t index = 1; index < s->handles->rooms[GP_HANDLE_GRAPH_NODE]; index++) {
        struct slot *slot = &s->handles->slots[GP_HANDLE_GRAPH_NODE][index];
        if (slot->state == SLOT_LIVE && is_node_of(s, slot, graph))
            gpw_slot_free(s, slot);
    }
    for (uint32_t i = 0; i < s->handles->named_count; i++) {
        struct named *n = &s->handles->named[i];
        if (n->graph == graph && n->real)
            named_gone(n);
    }
    orphans_gone(s);
}

void gpw_handle_node_gone(struct gpw_session *s, uint64_t real)
{
    uint64_t id = gpw_handle_find(s, GP_HANDLE_GRAPH_NODE, real);
    if (id)
        gpw_slot_free(s, gpw_slot_of(s, GP_HANDLE_GRAPH_NODE, id, false));
    for (uint32_t i = 0; i < s->handles->named_count; i++)
        if (s->handles->named[i].real == real)
            named_gone(&s->handles->named[i]);
    orphans_gone(s);
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
        if (slot->state != SLOT_LIVE || !slot->capture || gpw_slot_lives(s, slot))
            continue;
        if (real && slot->real == real) { /* the application's from now on */
            slot->contexts = s->handles->next_contexts;
            slot->parent = slot->capture = 0;
        } else {
            gpw_slot_free(s, slot);
            if (!gpw_handle_find(s, GP_HANDLE_GRAPH, slot->real)) /* one that was there stays */
                gpw_nodes_gone(s, slot->real);
        }
    }
}

static void graphs_gone(struct gpw_session *s, enum gp_handle_kind kind, uint64_t bit)
{
    for (uint32_t index = 1; index < s->handles->rooms[kind]; index++) {
        struct slot *slot = &s->handles->slots[kind][index];
        if (slot->state != SLOT_LIVE || !(slot->contexts & bit))
            continue;
        gpw_slot_free(s, slot);
        if (kind == GP_HANDLE_GRAPH)
            gpw_nodes_gone(s, slot->real);
    }
}

void gpw_graphs_of_context_gone(struct gpw_session *s, uint64_t id)
{
    graphs_gone(s, GP_HANDLE_GRAPH, gpw_context_bit(id));
    graphs_gone(s, GP_HANDLE_GRAPH_EXEC, gpw_context_bit(id));
}

/* A graph of this address is another one, if it was being captured and is no more. */
void gpw_graph_stale_gone(struct gpw_session *s, uint64_t real)
{
    for (uint32_t index = 1; index < s->handles->rooms[GP_HANDLE_GRAPH]; index++) {
        struct slot *slot = &s->handles->slots[GP_HANDLE_GRAPH][index];
        if (slot->state == SLOT_LIVE && slot->capture && slot->real == real &&
            !gpw_slot_lives(s, slot)) {
            gpw_slot_free(s, slot);
            gpw_nodes_gone(s, real);
        }
    }
}

/* What a child graph goes with: its node, or the graph of one that the worker has named. */
static uint64_t node_of(struct gpw_session *s, uint64_t id)
{
    const struct named *n = gpw_named_of(s, GP_HANDLE_GRAPH_NODE, id);
    return n ? gpw_handle_find(s, GP_HANDLE_GRAPH, n->graph) : id;
}

void gpw_slot_bind_graph(struct gpw_session *s, struct slot *slot, uint64_t parent)
{
    const struct slot *from = gpw_slot_live(s, parent, 0);
    if (gp_handle_kind(parent) == GP_HANDLE_GRAPH && from)
        slot->contexts = from->contexts;
    slot->contexts |= s->handles->next_contexts;
    slot->capture = s->handles->next_capture;
    bool child = gp_handle_kind(parent) == GP_HANDLE_GRAPH_NODE;
    gpw_slot_bind_parent(s, slot, child ? node_of(s, parent) : slot->capture ? parent : 0);
    gpw_handle_next_graph(s, 0, 0);
}

/* A graph goes with every context in which it was given a node. */
void gpw_slot_bind_node(struct gpw_session *s, struct slot *slot, uint64_t graph)
{
    uint64_t bit = gpw_handle_context_bit(s);
    for (uint64_t at = graph; at; at = gpw_handle_graph_around(s, at))
        gpw_handle_join_context_bits(s, at, bit);
    gpw_slot_bind_parent(s, slot, graph);
}

void gpw_handle_join_context_bits(struct gpw_session *s, uint64_t id, uint64_t contexts)
{
    struct slot *to = gpw_slot_live(s, id, 0);
    if (to)
        to->contexts |= contexts;
}

void gpw_handle_join_contexts(struct gpw_session *s, uint64_t id, uint64_t other)
{
    const struct slot *from = gpw_slot_live(s, other, 0);
    gpw_handle_join_context_bits(s, id, from ? from->contexts : 0);
}
