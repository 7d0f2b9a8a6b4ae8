/* The numbers that CUPTI's records call the driver's functions by. */
#ifndef GPC_DRIVER_NUMBERS_H
#define GPC_DRIVER_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/* All are below. */
#define GPC_CUPTI_NUMBERS 1024u

struct gpc_driver_number {
    const char *name;
    uint32_t number;
};
/* Generated; sorted by name. */
extern const struct gpc_driver_number gpc_driver_numbers[];
extern const size_t gpc_driver_number_count;
extern const uint32_t gpc_driver_number_last; /* the largest */

#endif
