/* The time that all processes on a board agree on. */
#include "board_internal.h"
#include "monotonic.h"

uint64_t gp_board_now(void)
{
    return gp_now_ns();
}
