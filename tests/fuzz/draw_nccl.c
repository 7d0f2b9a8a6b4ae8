/*
 * Communicators and collectives that NCCL may well do: with an id that the worker has given, of one
 * rank, or of two that this client has both, and calls whose buffers are the session's.
 */
#include <string.h>

#include "draw.h"
#include "gp_nccl_calls.h"
#include "nccl_api.h"

static struct gp_nccl_config config(struct draw *d)
{
    struct gp_nccl_config c;
    const int count = sizeof c.values / sizeof c.values[0];
    for (int i = 0; i < count; i++)
        c.values[i] = NCCL_CONFIG_UNDEF_INT;
    uint8_t which = draw_byte(d);
    if (which)
        c.values[which % count] = (int32_t)draw_number(d, 4);
    return c;
}

static uint32_t init(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_nccl_init *q = (void *)h;
    uint32_t at = sizeof *q;
    q->comm = draw_new(d, GP_HANDLE_COMMUNICATOR);
    q->ranks = 1 + (int32_t)draw_below(d, 2);
    q->rank = (int32_t)draw_below(d, (uint32_t)q->ranks);
    q->id_count = 1;
    q->config = config(d);
    q->n_ids = draw_append(h, &at, d->unique_id, sizeof d->unique_id);
    return at;
}

static uint32_t split(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_nccl_split *q = (void *)h;
    q->parent = draw_handle(d, GP_HANDLE_COMMUNICATOR);
    q->comm = draw_new(d, GP_HANDLE_COMMUNICATOR);
    q->color = (int32_t)draw_below(d, 3) - (draw_byte(d) > 200);
    q->key = (int32_t)draw_below(d, 2);
    q->config = config(d);
    return sizeof *q;
}

static uint32_t shrink(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_nccl_shrink *q = (void *)h;
    uint32_t at = sizeof *q;
    const int32_t excluded[2] = {1, 0};
    q->parent = draw_handle(d, GP_HANDLE_COMMUNICATOR);
    q->comm = draw_new(d, GP_HANDLE_COMMUNICATOR);
    q->flags = (int32_t)draw_below(d, 2);
    q->count = draw_below(d, 3);
    q->config = config(d);
    q->n_excluded = draw_append(h, &at, excluded, q->count * (uint32_t)sizeof excluded[0]);
    return at;
}

static uint32_t group(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_nccl_group *q = (void *)h;
    struct gp_nccl_call calls[3] = {{0}};
    uint32_t at = sizeof *q;
    q->count = 1 + draw_below(d, 3);
    for (uint32_t i = 0; i < q->count; i++) {
        struct gp_nccl_call *c = &calls[i];
        c->function = draw_below(d, GP_NCCL_FUNCTIONS + 1);
        c->comm = draw_handle(d, GP_HANDLE_COMMUNICATOR);
        c->stream = draw_handle(d, GP_HANDLE_STREAM);
        c->send = draw_address(d);
        c->recv = draw_address(d);
        c->count = draw_number(d, 8);
        c->datatype = (int32_t)draw_below(d, ncclNumTypes + 1);
        c->operation = (int32_t)draw_below(d, ncclNumOps + 3);
        c->peer = (int32_t)draw_below(d, 2);
    }
    q->stream = calls[0].stream;
    q->waits = draw_below(d, 2);
    q->n_calls = draw_append(h, &at, calls, q->count * (uint32_t)sizeof calls[0]);
    return at;
}

static uint32_t operation(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_nccl_operation *q = (void *)h;
    q->comm = draw_handle(d, GP_HANDLE_COMMUNICATOR);
    q->residence = (int32_t)draw_below(d, 3);
    q->datatype = (int32_t)draw_below(d, ncclNumTypes + 1);
    q->scalar = q->residence ? draw_number(d, 8) : draw_address(d);
    return sizeof *q;
}

const struct draw_request draw_nccl[] = {
    {GP_OP_gp_nccl_init, "", init, true},           {GP_OP_gp_nccl_split, "", split, true},
    {GP_OP_gp_nccl_shrink, "", shrink, true},       {GP_OP_gp_nccl_group, "", group, false},
    {GP_OP_gp_nccl_operation, "", operation, true},
};
const unsigned draw_nccl_count = sizeof draw_nccl / sizeof draw_nccl[0];
