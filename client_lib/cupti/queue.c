#include "queue.h"

#include <stdlib.h>
#include <string.h>

#define MOST (1u << 18)       /* records */
#define NAMES 16384u          /* a power of two */
#define NAME_BYTES (8u << 20) /* of all names */

struct gpc_queued {
    uint32_t kind; /* gp_cupti_kind */
    uint32_t correlation;
    const char *name;
    union {
        struct gp_activity_record activity;
        struct gp_cupti_api api;
        struct gp_cupti_external external;
    };
};

/* A hash table with open addressing, never more than half full. */
struct gpc_queue_names {
    size_t count, bytes;
    char *at[NAMES];
};

static struct gpc_queued *append(struct gpc_queue *q)
{
    if (q->count == q->room) {
        size_t room = q->room ? 2 * q->room : 256;
        struct gpc_queued *list = room <= MOST ? realloc(q->list, room * sizeof *list) : NULL;
        if (!list)
            return NULL;
        q->list = list;
        q->room = room;
    }
    return &q->list[q->count++];
}

static size_t hash_of(const char *name)
{
    uint32_t h = 2166136261u;
    while (*name)
        h = (h ^ (unsigned char)*name++) * 16777619u;
    return h % NAMES;
}

/* What cannot be kept has no name. */
static const char *keep_name(struct gpc_queue *q, const char *name)
{
    if (!q->names && !(q->names = calloc(1, sizeof *q->names)))
        return "";
    struct gpc_queue_names *n = q->names;
    size_t i = hash_of(name), size = strlen(name) + 1;
    for (; n->at[i]; i = (i + 1) % NAMES)
        if (strcmp(n->at[i], name) == 0)
            return n->at[i];
    if (n->count >= NAMES / 2 || n->bytes + size > NAME_BYTES || !(n->at[i] = strdup(name)))
        return "";
    n->count++;
    n->bytes += size;
    return n->at[i];
}

bool gpc_queue_activity(struct gpc_queue *q, const struct gp_activity_record *r, const char *name,
                        uint32_t correlation)
{
    static const uint32_t kinds[] = {[GP_ACTIVITY_KERNEL] = GP_CUPTI_CONCURRENT_KERNEL,
                                     [GP_ACTIVITY_COPY] = GP_CUPTI_MEMCPY,
                                     [GP_ACTIVITY_SET] = GP_CUPTI_MEMSET};
    struct gpc_queued *e = append(q);
    if (!e)
        return false;
    *e = (struct gpc_queued){
        .kind = kinds[r->kind], .correlation = correlation, .name = keep_name(q, name)};
    if (gp_activity_between_gpus(r))
        e->kind = GP_CUPTI_MEMCPY2;
    e->activity = *r;
    return true;
}

bool gpc_queue_api(struct gpc_queue *q, const struct gp_cupti_api *api)
{
    struct gpc_queued *e = append(q);
    if (!e)
        return false;
    *e = (struct gpc_queued){.kind = api->kind, .correlation = api->correlation};
    e->api = *api;
    return true;
}

bool gpc_queue_external(struct gpc_queue *q, uint32_t kind, uint64_t id, uint32_t correlation)
{
    struct gpc_queued *e = append(q);
    if (!e)
        return false;
    *e = (struct gpc_queued){.kind = GP_CUPTI_EXTERNAL_CORRELATION, .correlation = correlation};
    e->external = (struct gp_cupti_external){.kind = GP_CUPTI_EXTERNAL_CORRELATION,
                                             .external_kind = kind,
                                             .external = id,
                                             .correlation = correlation};
    return true;
}

void gpc_queue_free(struct gpc_queue *q)
{
    free(q->list);
    q->list = NULL;
    q->count = q->room = 0;
}

/* --- as CUPTI writes them --------------------------------------------------- */

struct writing {
    const struct gpc_clock_pair *first, *latest;
    gpc_queue_writer *write;
    void *arg;
    size_t failed;
};

/* A line through two moments; the application's clock may count anything. A time that a worker
 * lies about may be as far away as numbers go. */
static uint64_t in_their_clock(const struct writing *w, uint64_t ours)
{
    const double far = 9e18;
    double ticks = (double)(int64_t)(w->latest->theirs - w->first->theirs);
    double ns = (double)(int64_t)(w->latest->ours - w->first->ours);
    double since = (double)(int64_t)(ours - w->first->ours) * (ns > 0 ? ticks / ns : 1);
    since = since > far ? far : since < -far ? -far : since;
    return w->first->theirs + (uint64_t)(int64_t)since;
}

static void put(struct writing *w, const void *record, size_t size)
{
    if (!w->write(w->arg, record, size))
        w->failed++;
}

static void put_kernel(struct writing *w, const struct gpc_queued *e)
{
    const struct gp_activity_record *r = &e->activity;
    struct gp_cupti_kernel k = {.kind = e->kind,
                                .registers = (uint16_t)r->registers,
                                .start = in_their_clock(w, r->start),
                                .end = in_their_clock(w, r->end),
                                .device = r->device,
                                .context = r->context,
                                .stream = r->stream,
                                .static_shared = r->static_shared,
                                .dynamic_shared = r->dynamic_shared,
                                .local_per_thread = r->local_per_thread,
                                .local_total = r->local_total,
                                .correlation = e->correlation,
                                .grid_id = r->grid_id,
                                .name = e->name,
                                .graph_node = r->graph_node,
                                .graph = r->graph,
                                .local_total_v2 = r->local_total};
    k.completed = k.end;
    memcpy(k.grid, r->grid, sizeof k.grid);
    memcpy(k.block, r->block, sizeof k.block);
    memcpy(k.cluster, r->cluster, sizeof k.cluster);
    put(w, &k, sizeof k);
}

static void put_copy(struct writing *w, const struct gpc_queued *e)
{
    const struct gp_activity_record *r = &e->activity;
    const struct gp_cupti_memcpy c = {.kind = e->kind,
                                      .copy = r->copy,
                                      .from = r->from,
                                      .to = r->to,
                                      .flags = r->async ? GP_CUPTI_ASYNC : 0,
                                      .bytes = r->bytes,
                                      .start = in_their_clock(w, r->start),
                                      .end = in_their_clock(w, r->end),
                                      .device = r->device,
                                      .context = r->context,
                                      .stream = r->stream,
                                      .correlation = e->correlation,
                                      .graph_node = r->graph_node,
                                      .graph = r->graph,
                                      .copies = 1};
    put(w, &c, sizeof c);
}

static void put_copy2(struct writing *w, const struct gpc_queued *e)
{
    const struct gp_activity_record *r = &e->activity;
    const struct gp_cupti_memcpy2 c = {.kind = e->kind,
                                       .copy = r->copy,
                                       .from = r->from,
                                       .to = r->to,
                                       .flags = r->async ? GP_CUPTI_ASYNC : 0,
                                       .bytes = r->bytes,
                                       .start = in_their_clock(w, r->start),
                                       .end = in_their_clock(w, r->end),
                                       .device = r->device,
                                       .context = r->context,
                                       .stream = r->stream,
                                       .from_device = r->from_device,
                                       .from_context = r->from_context,
                                       .to_device = r->to_device,
                                       .to_context = r->to_context,
                                       .correlation = e->correlation,
                                       .graph_node = r->graph_node,
                                       .graph = r->graph};
    put(w, &c, sizeof c);
}

static void put_set(struct writing *w, const struct gpc_queued *e)
{
    const struct gp_activity_record *r = &e->activity;
    const struct gp_cupti_memset m = {.kind = e->kind,
                                      .value = r->value,
                                      .bytes = r->bytes,
                                      .start = in_their_clock(w, r->start),
                                      .end = in_their_clock(w, r->end),
                                      .device = r->device,
                                      .context = r->context,
                                      .stream = r->stream,
                                      .correlation = e->correlation,
                                      .flags = r->async ? GP_CUPTI_ASYNC : 0,
                                      .memory = r->to,
                                      .graph_node = r->graph_node,
                                      .graph = r->graph};
    put(w, &m, sizeof m);
}

static void put_call(struct writing *w, const struct gpc_queued *e)
{
    if (e->kind == GP_CUPTI_EXTERNAL_CORRELATION) {
        put(w, &e->external, sizeof e->external);
        return;
    }
    struct gp_cupti_api api = e->api;
    api.start = in_their_clock(w, api.start);
    api.end = in_their_clock(w, api.end);
    put(w, &api, sizeof api);
}

static bool is_of_gpu(const struct gpc_queued *e)
{
    return e->kind != GP_CUPTI_DRIVER && e->kind != GP_CUPTI_EXTERNAL_CORRELATION;
}

/* Pieces of the copy that one call asked for: the driver here would have made it at once. */
static bool goes_on(const struct gpc_queued *a, const struct gpc_queued *b)
{
    return a->kind == GP_CUPTI_MEMCPY && b->kind == GP_CUPTI_MEMCPY && a->correlation &&
           a->correlation == b->correlation && !a->activity.graph && !b->activity.graph &&
           a->activity.copy == b->activity.copy && a->activity.stream == b->activity.stream &&
           a->activity.device == b->activity.device;
}

static void join(struct gp_activity_record *all, const struct gp_activity_record *piece)
{
    all->bytes += piece->bytes;
    if (piece->start < all->start)
        all->start = piece->start;
    if (piece->end > all->end)
        all->end = piece->end;
}

static void put_of_gpu(struct writing *w, const struct gpc_queued *e)
{
    if (e->kind == GP_CUPTI_MEMCPY)
        put_copy(w, e);
    else if (e->kind == GP_CUPTI_MEMCPY2)
        put_copy2(w, e);
    else if (e->kind == GP_CUPTI_MEMSET)
        put_set(w, e);
    else
        put_kernel(w, e);
}

size_t gpc_queue_write(const struct gpc_queue *q, const struct gpc_clock_pair *first,
                       const struct gpc_clock_pair *latest, gpc_queue_writer *write, void *arg)
{
    struct writing w = {.first = first, .latest = latest, .write = write, .arg = arg};
    struct gpc_queued last = {.kind = 0};
    for (size_t i = 0; i < q->count; i++)
        if (!is_of_gpu(&q->list[i]))
            put_call(&w, &q->list[i]);
    for (size_t i = 0; i < q->count; i++) {
        if (!is_of_gpu(&q->list[i]))
            continue;
        if (goes_on(&last, &q->list[i])) {
            join(&last.activity, &q->list[i].activity);
            continue;
        }
        if (last.kind)
            put_of_gpu(&w, &last);
        last = q->list[i];
    }
    if (last.kind)
        put_of_gpu(&w, &last);
    return w.failed;
}
