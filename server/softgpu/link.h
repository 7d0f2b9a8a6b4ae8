/* Linking when a module is loaded (link.c), and a library of ours (link_grid.c). */
#ifndef SG_LINK_H
#define SG_LINK_H

#include "softgpu.h"

/* The PTX, as sg_image_ptx gives it, of what nvcc leaves to be linked when it is loaded: fat
 * binaries up to a NULL. Those of machine code alone are left out; what they define is missing
 * then, by its name. */
CUresult sg_link_fatbins(const void *const *fatbins, char **ptx, size_t *length, char *log,
                         size_t log_size);
/* The part of libcudadevrt, as PTX, that `text` asks for; NULL: none. */
const char *sg_link_library(const char *text);

#endif
