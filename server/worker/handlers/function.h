/* What launches need to know of functions and kernels, and the client with them. */
#ifndef GPW_FUNCTION_H
#define GPW_FUNCTION_H

#include "session.h"

/* 0, or -1 when there is no memory. */
int gpw_functions_open(struct gpw_session *s);

/* The parameters of a function or kernel, from the driver the first time. The
 * table is valid until gpw_functions_forget. */
struct gpw_parameters {
    uint32_t count;
    uint32_t bytes; /* of the packed buffer */
    uint32_t local; /* bytes of local memory a thread */
    bool prints;    /* it may */
    const struct gp_parameter *at;
};
CUresult gpw_parameters_of(struct gpw_session *s, CUfunction function, struct gpw_parameters *out);

/* A module or a context has ended: addresses of its functions may come again. */
void gpw_functions_forget(struct gpw_session *s);

/* The names, NUL-separated from the one numbered `skip` on, of a module's functions or of a
 * library's kernels: one of the two is NULL. */
CUresult gpw_kernel_names(struct gpw_session *s, CUmodule module, CUlibrary library, uint32_t skip,
                          char *names, uint32_t *n_names);

#endif
