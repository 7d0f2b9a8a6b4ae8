/* Whether a name, settings, a grant can be on a board. */
#include <string.h>

#include "board_internal.h"

bool gp_board_name_ok(const char name[GP_BOARD_NAME])
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    size_t n = strnlen(name, GP_BOARD_NAME);
    return n >= 1 && n < GP_BOARD_NAME && strspn(name, allowed) == n;
}

bool gp_board_gpu_ok(const struct gp_board_gpu *gpu)
{
    return gpu->policy <= GP_POLICY_SHARE && gpu->max_inst >= 1 && gpu->max_inst <= 25 &&
           gpu->prio_ratio >= 20 && gpu->prio_ratio <= 99 && gpu->hardware <= 1;
}

bool gp_board_grant_ok(const struct gp_board_grant *g)
{
    return g->weight <= 25 && g->share >= 1 && g->share <= 1000 && g->ceiling >= g->share &&
           g->ceiling <= 1000 && g->high_priority <= 1 && g->forced <= 1 && g->gang <= 1;
}
