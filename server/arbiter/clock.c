/* The time that all processes on a board agree on. */
#include <time.h>

#include "board_internal.h"

uint64_t gp_board_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
