/* Images as they arrive, and what launches need to know of functions. */
#ifndef GPW_MODULE_H
#define GPW_MODULE_H

#include "session.h"

/* 0 or -1. */
int gpw_modules_open(struct gpw_session *s);
void gpw_modules_close(struct gpw_session *s);

/* Functions of a context that ends may have their addresses used again. */
void gpw_modules_context_ended(struct gpw_session *s);

/* The parameters of a function or kernel, from the driver the first time. The
 * table is valid until a module is unloaded. */
struct gpw_parameters {
    uint32_t count;
    uint32_t bytes; /* of the packed buffer */
    uint32_t local; /* bytes of local memory a thread */
    const struct gp_parameter *at;
};
CUresult gpw_parameters_of(struct gpw_session *s, CUfunction function, struct gpw_parameters *out);

#endif
