/* Whether the machine has UCX for the tests; who says no has said why. */
#ifndef GP_UCX_HERE_H
#define GP_UCX_HERE_H

#include <stdbool.h>
#include <stdio.h>

#include "transport/transport.h"

/* What ctest takes for a test that was skipped. */
#define UCX_SKIPPED 77

/* `ready` is a transport's own; it opens UCX, so tests of its absence come before. */
static inline bool ucx_is_here(int (*ready)(struct gp_error *err))
{
    struct gp_error err = {.text = ""};
    if (ready(&err) == 0)
        return true;
    printf("skipped: %s\n", err.text);
    return false;
}

#endif
