/*
 * What the GPU and kernels tell and change, as a client may well ask for it: the page of its waits,
 * launches whose captured nodes kernels update, and uploads so long that their message is kept.
 */
#include <string.h>

#include "draw.h"

static uint32_t completion_open(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_completion_open *q = (void *)h;
    q->share = draw_number(d, 8);
    q->bytes = GP_COMPLETION_BYTES - draw_below(d, 2);
    return sizeof *q;
}

static uint32_t launch_updatable(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_launch_updatable *q = (void *)h;
    uint32_t at = sizeof *q;
    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE},
                                       {.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE}};
    q->function = draw_handle(d, GP_HANDLE_FUNCTION);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    uint64_t parameters[2] = {draw_address(d), draw_number(d, 8)};
    q->grid_x = 1 + draw_below(d, 4);
    q->grid_y = q->grid_z = q->block_x = q->block_y = q->block_z = 1;
    q->attribute_count = 1 + draw_below(d, 2);
    for (unsigned i = 0; i < 2; i++) {
        attributes[i].value.deviceUpdatableKernelNode.deviceUpdatable = 1 - (int)draw_number(d, 4);
        attributes[i].value.deviceUpdatableKernelNode.devNode = (CUgraphDeviceNode)(uintptr_t)
                                                                    d->node;
    }
    q->parameter_bytes = sizeof parameters;
    q->n_parameters = draw_append(h, &at, parameters, sizeof parameters);
    q->n_attributes = draw_append(h, &at, attributes, q->attribute_count * sizeof attributes[0]);
    return at;
}

/* Longer than a tail that is drawn word by word: as long as one that lies in memory of its own. */
static uint32_t upload(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_htod *q = (void *)h;
    uint32_t at = sizeof *q;
    q->dst = draw_address(d);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    q->bytes = (uint32_t)draw_bytes_count(d);
    if (q->bytes != DRAW_LONG) {
        q->n_data = draw_tail(d, h, &at, q->bytes, 1);
        return at;
    }
    at = (uint32_t)gp_align8(at);
    memset((char *)h + at, draw_byte(d), DRAW_LONG);
    q->n_data = DRAW_LONG;
    return at + DRAW_LONG;
}

const struct draw_request draw_told[] = {
    {GP_OP_gp_completion_open, "", completion_open, false},
    {GP_OP_gp_launch_updatable, "", launch_updatable, false},
    {GP_OP_gp_htod, "", upload, false},
};
const unsigned draw_told_count = sizeof draw_told / sizeof draw_told[0];
