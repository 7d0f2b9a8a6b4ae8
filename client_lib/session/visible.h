/*
 * CUDA_VISIBLE_DEVICES: which devices a program sees, and in which order, as CUDA reads it:
 * indices, or UUIDs from their beginning (GPU-, MIG-) as far as they are unique. The first entry
 * that names no device ends the list; with one that is there twice cuInit fails. What the first
 * entry is all others must be. UUIDs are read in either case, and no further than they go.
 */
#ifndef GPC_VISIBLE_H
#define GPC_VISIBLE_H

#include <stdbool.h>
#include <stdint.h>

#include "snapshot.h"

struct gpc_visible {
    unsigned count;
    bool twice;                 /* a device is there twice: there is none, and the list is wrong */
    uint8_t at[GP_DEVICES_MAX]; /* which of all devices is the program's first, second, … */
};

/* What a list makes visible of `count` devices, in their order. */
void gpc_visible_read(const char *list, const struct gp_device_info *const *devices, unsigned count,
                      struct gpc_visible *out);
/* Whether it makes nothing visible, whatever devices there are. */
bool gpc_visible_nothing(const char *list);

#endif
