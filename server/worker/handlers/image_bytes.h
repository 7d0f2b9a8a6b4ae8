/*
 * Where the bytes of an image lie while it is here: in the heap, in a file of memory that can be
 * handed on without a copy, or where the kernel has a file of the store's anyway. A NUL is behind
 * them: linked text may come without its own.
 */
#ifndef GPW_IMAGE_BYTES_H
#define GPW_IMAGE_BYTES_H

#include "module.h"

/* Room for `total` bytes that the client sends. */
bool gpw_image_bytes_new(const struct gpw_session *s, struct gpw_image *image);
/* All `total` bytes of a file that is kept; it may be closed behind this. */
bool gpw_image_bytes_stored(struct gpw_image *image, int file);
/* `file` stays open. */
void gpw_image_bytes_free(struct gpw_image *image);

#endif
