/* Which strategy copies from what to what, and by which transport. */
#include "plan.h"

/* Refusals, by name. */
static const struct gpc_strategy far_array = {
    .name = "far_array",
    .refusal = "a CUDA array of another host than the copy's stream",
};
static const struct gpc_strategy far_memory = {
    .name = "far_memory",
    .refusal = "a CUDA array and memory of another host",
};

static const struct gpc_strategy captured = {
    .name = "captured",
    .run = gpc_copy_captured,
};
static const struct gpc_strategy host = {
    .name = "host",
    .run = gpc_copy_on_host,
};
static const struct gpc_strategy device = {
    .name = "device",
    .run = gpc_copy_on_device,
};
static const struct gpc_strategy remote = {
    .name = "remote",
    .run = gpc_copy_remote,
};
static const struct gpc_strategy peer = {
    .name = "peer",
    .run = gpc_copy_peer,
};

static const struct gpc_strategy upload_arena = {
    .name = "upload_arena",
    .run = gpc_copy_upload_arena,
    .in_graph = &captured,
};
static const struct gpc_strategy upload_pinned_arena = {
    .name = "upload_pinned_arena",
    .run = gpc_copy_upload_arena,
    .in_graph = &captured,
};
static const struct gpc_strategy download_arena = {
    .name = "download_arena",
    .run = gpc_copy_download_arena,
    .in_graph = &captured,
};
static const struct gpc_strategy download_pinned_arena = {
    .name = "download_pinned_arena",
    .run = gpc_copy_download_pinned_arena,
    .in_graph = &captured,
};
static const struct gpc_strategy upload_message = {
    .name = "upload_message",
    .run = gpc_copy_upload_message,
    .in_graph = &captured,
};
static const struct gpc_strategy upload_pinned_message = {
    .name = "upload_pinned_message",
    .run = gpc_copy_upload_message,
    .in_graph = &captured,
};
static const struct gpc_strategy download_message = {
    .name = "download_message",
    .run = gpc_copy_download_message,
    .in_graph = &captured,
};
static const struct gpc_strategy download_pinned_message = {
    .name = "download_pinned_message",
    .run = gpc_copy_download_pinned_message,
    .in_graph = &captured,
};

static const struct gpc_strategy upload_array = {
    .name = "upload_array",
    .run = gpc_copy_upload_message,
    .in_graph = &captured,
};
static const struct gpc_strategy download_array = {
    .name = "download_array",
    .run = gpc_copy_download_message,
    .in_graph = &captured,
};
static const struct gpc_strategy download_pinned_array = {
    .name = "download_pinned_array",
    .run = gpc_copy_download_pinned_message,
    .in_graph = &captured,
};

/* [transport][source][destination], kinds in the order of gpc_end_kind: pageable, pinned,
 * shared, device, remote, array, far. */
static const struct gpc_strategy *const table[GPC_COPY_TRANSPORTS][GPC_END_KINDS][GPC_END_KINDS] = {
    [GPC_COPY_SHM] =
        {
            {&host, &host, &host, &upload_arena, &remote, &upload_array, &far_array},
            {&host, &host, &host, &upload_pinned_arena, &remote, &upload_array, &far_array},
            {&host, &host, &host, &device, &remote, &device, &far_array},
            {&download_arena, &download_pinned_arena, &device, &device, &peer, &device, &far_array},
            {&remote, &remote, &remote, &peer, &peer, &far_memory, &far_array},
            {&download_array, &download_pinned_array, &device, &device, &far_memory, &device,
             &far_array},
            {&far_array, &far_array, &far_array, &far_array, &far_array, &far_array, &far_array},
        },
    [GPC_COPY_NETWORK] =
        {
            {&host, &host, &host, &upload_message, &remote, &upload_array, &far_array},
            {&host, &host, &host, &upload_pinned_message, &remote, &upload_array, &far_array},
            {&host, &host, &host, &device, &remote, &device, &far_array},
            {&download_message, &download_pinned_message, &device, &device, &peer, &device,
             &far_array},
            {&remote, &remote, &remote, &peer, &peer, &far_memory, &far_array},
            {&download_array, &download_pinned_array, &device, &device, &far_memory, &device,
             &far_array},
            {&far_array, &far_array, &far_array, &far_array, &far_array, &far_array, &far_array},
        },
};

const struct gpc_strategy *gpc_copy_strategy(enum gpc_copy_transport transport,
                                             enum gpc_end_kind src, enum gpc_end_kind dst)
{
    return table[transport][src][dst];
}
