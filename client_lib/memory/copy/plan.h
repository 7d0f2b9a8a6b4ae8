/*
 * A copy is planned once: its two ends are classified, then one table (table.c), source ×
 * destination × transport, has the strategy. 1-D, 2-D and 3-D copies, peers', synchronous
 * and captured ones all go this way.
 *
 * A new kind of memory is a row and a column: name it in gpc_end_kind, let end.c recognize
 * it, and give each of its cells a strategy or the reason why there is none. Managed memory
 * is a device's: what the host has written there goes over before the copy's message does
 * (managed.h). The unit test (tests/c/test_copy_plan.c) fails for a cell without either.
 *
 * A CUDA array has no addresses. Its end of a copy is the box alone, packed: `at` is 0, and what
 * is so far from it is `at` bytes into the box (gpc_array_box).
 */
#ifndef GPC_COPY_PLAN_H
#define GPC_COPY_PLAN_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ranges.h"
#include "route.h"
#include "snapshot.h"
#include "span.h"

/* What an end is, seen from the host that the copy's stream is on. */
enum gpc_end_kind {
    GPC_END_PAGEABLE, /* host memory that nobody said anything about */
    GPC_END_PINNED,   /* host memory, allocated or registered, that this process alone has */
    GPC_END_SHARED,   /* host memory that the worker of that host has mapped as well */
    GPC_END_DEVICE,   /* a device's there; or an address that only the driver may know */
    GPC_END_REMOTE,   /* a device's of another host */
    GPC_END_ARRAY,    /* a CUDA array there */
    GPC_END_FAR,      /* a CUDA array of another host */
    GPC_END_KINDS
};

/* What the call says that an end is. */
enum gpc_end_said { GPC_SAID_ANY, GPC_SAID_HOST, GPC_SAID_DEVICE, GPC_SAID_ARRAY };

struct gpc_end {
    uint64_t at; /* of the first byte */
    struct gp_span span;
    enum gpc_end_said said;
    enum gpc_end_kind kind;
    CUarray array;            /* said to be one: */
    struct gp_span_end first; /* where in it the box begins */
    bool known;               /* somebody got it from us: */
    struct gpc_range range;
};

struct gpc_copy {
    uint16_t op; /* as the application called it */
    bool blocking;
    struct gpc_route *on;
    CUstream stream;
    struct gp_span_box box;
    struct gpc_end dst, src;
    unsigned messages; /* sent for it with bytes that are taken over */
};

enum gpc_copy_transport { GPC_COPY_SHM, GPC_COPY_NETWORK, GPC_COPY_TRANSPORTS };

/* How a copy is made; or, with `refusal`, that it is not, and why. */
struct gpc_strategy {
    const char *name;
    const char *refusal;
    CUresult (*run)(struct gpc_copy *c);
    const struct gpc_strategy *in_graph; /* instead, while the stream captures; NULL: the same */
};

/* end.c: look both ends up, at once, and classify them. INVALID_VALUE for what CUDA sees
 * at once: more bytes than an allocation has, device memory where host memory belongs. */
CUresult gpc_copy_classify(struct gpc_copy *c);
/* The kind of an end that has been looked up, seen from another route. */
enum gpc_end_kind gpc_end_seen_from(const struct gpc_end *e, const struct gpc_route *on);
/* table.c: never NULL. */
const struct gpc_strategy *gpc_copy_strategy(enum gpc_copy_transport transport,
                                             enum gpc_end_kind src, enum gpc_end_kind dst);
/* copy.c: what its ends are, looked up and classified; of one that is not empty. */
CUresult gpc_copy_plan_pitched(struct gpc_copy *c, const CUDA_MEMCPY3D *p);
/* copy.c: find the strategy for the ends, and run it. */
CUresult gpc_copy_run(struct gpc_copy *c);
/* The rows of a copy: whole slices are one where they lie without gaps. */
struct gpc_rows {
    size_t count, of_slice;
    size_t bytes; /* of each */
};
struct gpc_rows gpc_copy_rows_of(const struct gpc_copy *c);
/* How far the row's first byte is from the end's, which has these steps. */
size_t gpc_copy_row_at(const struct gp_span *span, const struct gpc_rows *rows, size_t row);
/* Row by row. */
CUresult gpc_copy_rows(struct gpc_copy *c, CUresult (*row)(struct gpc_copy *c, uint64_t dst,
                                                           uint64_t src, size_t bytes));
static inline bool gpc_copy_is_linear(const struct gpc_copy *c)
{
    return c->box.height == 1 && c->box.depth == 1;
}

/* What one message carries of these bytes. */
static inline uint32_t gpc_copy_chunk(size_t bytes)
{
    return bytes < GP_CHUNK_MAX ? (uint32_t)bytes : (uint32_t)GP_CHUNK_MAX;
}

/* The same of this copy `at` bytes into a row of gpc_copy_rows, of which so many are left: of an
 * array, whole rows where they fit, else no more than is left of one. */
uint32_t gpc_copy_piece(const struct gpc_copy *c, size_t at, size_t bytes);
static inline bool gpc_copy_has_array(const struct gpc_copy *c)
{
    return c->src.kind == GPC_END_ARRAY || c->dst.kind == GPC_END_ARRAY;
}

/* array_copy.c: what of the end's array `at` and the bytes from there on are: whole rows of a
 * slice, or a piece of one row. */
struct gp_array_box gpc_array_box(const struct gpc_copy *c, const struct gpc_end *e, uint64_t at,
                                  size_t bytes);
/* Such bytes from or to packed memory that the worker knows by this address. */
CUresult gpc_array_move(struct gpc_copy *c, uint64_t at, uint64_t address, size_t bytes);

/* --- strategies, each in the file of its name ------------------------------------------- */

CUresult gpc_copy_upload_arena(struct gpc_copy *c); /* upload.c */
CUresult gpc_copy_upload_message(struct gpc_copy *c);
CUresult gpc_copy_download_arena(struct gpc_copy *c); /* download.c */
CUresult gpc_copy_download_message(struct gpc_copy *c);
CUresult gpc_copy_download_pinned_arena(struct gpc_copy *c);
CUresult gpc_copy_download_pinned_message(struct gpc_copy *c);
CUresult gpc_copy_on_device(struct gpc_copy *c); /* on_device.c */
CUresult gpc_copy_array(struct gpc_copy *c);     /* array_copy.c */
CUDA_MEMCPY3D gpc_copy_box(const struct gpc_copy *c);
CUresult gpc_copy_on_host(struct gpc_copy *c);  /* on_host.c */
CUresult gpc_copy_captured(struct gpc_copy *c); /* captured_copy.c */
CUresult gpc_copy_remote(struct gpc_copy *c);   /* remote/remote_copy.c */
CUresult gpc_copy_peer(struct gpc_copy *c);

#endif
