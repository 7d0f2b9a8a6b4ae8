/*
 * Attributes of kernels and functions, by device: brought by the look-up, written by the
 * setters, so that asking for one costs no message.
 *
 * A kernel and the functions made of it are one *family*. What is set on a kernel shows on its
 * functions, until one has a setting of its own, which then counts for good. An answer that a
 * setter of the family leaves open is asked for again, once for each state that the setters
 * have made (gpc_attributes_salt).
 */
#ifndef GPC_ATTRIBUTES_H
#define GPC_ATTRIBUTES_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "gp_messages.h"

struct gpc_kernel;
struct gpc_route;
struct gpc_setting;

/* Of one kernel or function on one device. Read without a lock. */
struct gpc_attributes {
    struct gpc_attributes *next; /* of another device */
    CUdevice device;
    uint32_t flags; /* gp_described_flags */
    uint32_t known; /* a bit for each value that holds */
    int32_t values[GP_FUNCTION_ATTRIBUTES];
    /* where the family keeps what was set: in the kernel's */
    struct gpc_setting *settings[GP_FUNCTION_ATTRIBUTES]; /* the last one first */
    uint64_t salt;
};

/* NULL while nothing is known. */
struct gpc_attributes *gpc_attributes_on(const struct gpc_kernel *k, CUdevice device);
/* What came with the look-up: k is not to be seen by others yet. False without memory. */
bool gpc_attributes_begin(struct gpc_kernel *k, CUdevice device,
                          const struct gp_function_attributes *from);
/* What a function of a kernel has from it, likewise. */
bool gpc_attributes_inherit(struct gpc_kernel *function, CUdevice device);
/* Parameters and attributes are known, and the driver has loaded it where there is a
 * context: what a launch needs. One round trip the first time, unless the look-up did.
 * NULL: the thread's route. */
CUresult gpc_attributes_ready(struct gpc_kernel *k, CUdevice device, const struct gpc_route *on);

/* Its parameters alone are known. */
CUresult gpc_attributes_parameters(struct gpc_kernel *k);
/* The value, if it is known without asking. No lock. */
bool gpc_attributes_know(const struct gpc_kernel *k, CUdevice device,
                         CUfunction_attribute attribute, int *value);
CUresult gpc_attribute_get(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                           int *value);
CUresult gpc_attribute_set(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                           int value);
/* The state of a function's family, for answers that depend on it; 0 if nothing was set. */
uint64_t gpc_attributes_salt(uint64_t function);
/* The driver forgets what was set and loaded when a device's primary context ends. */
void gpc_attributes_context_ended(struct gpc_kernel *k, CUdevice device);
void gpc_attributes_free(struct gpc_kernel *k);

#endif
