/* The driver of null_driver.h: it does nothing, and counts what it is asked. */
#ifndef NULL_GPU_H
#define NULL_GPU_H

#include <cuda.h>

#include "gpw_driver.h"
#include "null_driver.h"
#include "wire/wire.h"

#define NULL_CONTEXT ((CUcontext)(uintptr_t)0xa0)
#define NULL_OBJECT 0xb0 /* what it has for a handle */
#define NULL_PARAMETERS 4

struct null_gpu {
    struct null_counts counts;
    bool behind;
    struct {
        uint64_t *to; /* NULL: nothing is to be written */
        uint64_t value;
    } due;
    /* of the client's, into which it writes */
    _Alignas(64) unsigned char page[GP_COMPLETION_BYTES];
};
extern struct null_gpu null_gpu;
extern struct gpw_driver null_gpu_driver;

/* Abort unless it is right. */
void null_must(bool right, const char *what);

#endif
