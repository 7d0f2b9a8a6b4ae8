/* Which strategy copies from what to what, and by which transport. */
#include "plan.h"

/* Refusals, by name. */
static const struct gpc_strategy not_shared = {
    .name = "not_shared",
    .refusal = "memory shared over a network",
};
static const struct gpc_strategy arrays = {
    .name = "arrays",
    .refusal = "CUDA arrays",
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

/* [transport][source][destination], kinds in the order of gpc_end_kind: pageable, pinned,
 * shared, device, remote, array. */
static const struct gpc_strategy *const table[GPC_COPY_TRANSPORTS][GPC_END_KINDS][GPC_END_KINDS] = {
    [GPC_COPY_SHM] =
        {
            {&host, &host, &host, &upload_arena, &remote, &arrays},
            {&host, &host, &host, &upload_pinned_arena, &remote, &arrays},
            {&host, &host, &host, &device, &remote, &arrays},
            {&download_arena, &download_pinned_arena, &device, &device, &peer, &arrays},
            {&remote, &remote, &remote, &peer, &peer, &arrays},
            {&arrays, &arrays, &arrays, &arrays, &arrays, &arrays},
        },
    [GPC_COPY_NETWORK] =
        {
            {&host, &host, &not_shared, &upload_message, &remote, &arrays},
            {&host, &host, &not_shared, &upload_pinned_message, &remote, &arrays},
            {&not_shared, &not_shared, &not_shared, &not_shared, &not_shared, &arrays},
            {&download_message, &download_pinned_message, &not_shared, &device, &peer, &arrays},
            {&remote, &remote, &not_shared, &peer, &peer, &arrays},
            {&arrays, &arrays, &arrays, &arrays, &arrays, &arrays},
        },
};

const struct gpc_strategy *gpc_copy_strategy(enum gpc_copy_transport transport,
                                             enum gpc_end_kind src, enum gpc_end_kind dst)
{
    return table[transport][src][dst];
}
