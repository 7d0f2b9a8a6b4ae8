/*
 * What an application hands to cuModuleLoadData and its like: a pointer without
 * a size. Here it becomes a list of pieces with sizes, and a name.
 *
 * Accepted: a fat binary's wrapper (0x466243B1, version 1 or 2 with its array of
 * prelinked fat binaries), a bare fat binary, a bare cubin, NUL-terminated PTX.
 */
#ifndef GPC_IMAGE_H
#define GPC_IMAGE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "fatbin.h"
#include "image_name.h"

struct gpc_route;

struct gpc_image {
    /* Piece 0 is what is linked already: the whole of a bare image; a fat binary without files
     * where all is left to the driver. Pieces 1… are prelinked, for its linker. */
    uint32_t count;
    const struct gp_image_part *pieces; /* `one` or memory of its own; of bytes that are the
                                         * application's, not copied; PTX with its NUL */
    uint64_t total;                     /* bytes of all pieces */
    struct gp_image_part one;
};

/* Reads only what the headers in the image claim as theirs. INVALID_VALUE for a
 * null pointer, INVALID_IMAGE for what is none or claims more than 4 GiB,
 * OUT_OF_MEMORY; `out` is then left alone. Release it after use; do not copy the
 * structure (`pieces` may point into it). */
CUresult gpc_image_describe(const void *image, struct gpc_image *out);
void gpc_image_release(struct gpc_image *image);

/* Of the pieces' bytes one after the other, as they are sent. That of a long image is found out
 * with the movers (movers.h). */
void gpc_image_name(const struct gpc_route *on, const struct gpc_image *image,
                    unsigned char name[GP_IMAGE_NAME_BYTES]);

/* From an image's first piece until it is loaded: the worker drops what it has loaded, so another
 * thread's of the same hash would be sent into it, or be missing. */
void gpc_image_lock(const unsigned char hash[32]);
void gpc_image_unlock(const unsigned char hash[32]);

/* Send the pieces as one, to be kept there under its hash (image_load.c; NULL: where the thread
 * is). Under its lock. */
CUresult gpc_image_put(const struct gpc_route *on, const struct gpc_image *image,
                       const unsigned char hash[32]);

#endif
