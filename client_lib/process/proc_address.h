/* The generated table behind cuGetProcAddress. */
#ifndef GPC_PROC_ADDRESS_H
#define GPC_PROC_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

struct gpc_proc {
    const char *name;
    int version;    /* CUDA version from which this name means this function */
    int per_thread; /* the per-thread-stream form */
    uint16_t op;
    void *function;
};
/* Sorted by name, then newest version first. */
extern const struct gpc_proc gpc_proc_table[];
extern const size_t gpc_proc_count;

#endif
