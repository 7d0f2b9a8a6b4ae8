/*
 * A library belongs to no context, so a program loads it once for all devices. Each
 * session that uses it has a *replica* of it, loaded there at the first use, and replicas of
 * its kernels; the application's handles are the first ones made.
 */
#ifndef GPC_REPLICA_H
#define GPC_REPLICA_H

#include "handle.h"
#include "module.h"

/* What to load a library from again: the image and its options. */
struct gpc_source {
    struct gpc_load load;
    void *copy; /* of the image, unless the application keeps it */
    CUjit_option *options;
    void **values;
    CUlibraryOption *library_options;
    void **library_values;
};

/* With one session nothing is kept: *source is then NULL. */
CUresult gpc_source_keep(const struct gpc_load *load, struct gpc_source **source);
void gpc_source_free(struct gpc_source *source);

/* As gpc_handle_wire, for functions and libraries: a library's name no session, and are
 * what they are in the session that the call goes to. */
CUresult gpc_replica_wire(struct gpc_call *call, enum gp_handle_kind kind, uint64_t id,
                          uint64_t *wire);
/* Unload it wherever it is loaded. */
CUresult gpc_replica_unload(struct gpc_image_shadow *library);

#endif
