/* The tables that gen_defaults.py writes. */
#ifndef SG_DEFAULTS_H
#define SG_DEFAULTS_H

#include "softgpu.h"

struct sg_symbol {
    const char *name; /* as cuGetProcAddress is asked; sorted, then by version */
    int since;        /* CUDA version, e.g. 12020 */
    bool per_thread;  /* the variant with the per-thread default stream */
    void *function;
};
extern const struct sg_symbol sg_symbols[];
extern const size_t sg_symbol_count;

struct sg_error {
    int value;
    const char *name, *text;
};
extern const struct sg_error sg_errors[];
extern const size_t sg_error_count;

#endif
