#include "board_calls.h"

#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const struct gp_board_grant grant = {.memory_limit = 64 * MIB,
                                            .weight = 2,
                                            .share = 500,
                                            .ceiling = 900};

int board_furnish(struct gp_board *b, int members[3])
{
    if (gp_board_tenant_set(b, "a", &grant) != 0 || gp_board_tenant_set(b, "b/g", &grant) != 0)
        return -1;
    members[0] = gp_board_join(b, "a");
    members[1] = gp_board_join(b, "b/g");
    members[2] = gp_board_join(b, "b/g");
    gp_board_memory_take(b, members[0], MIB);
    gp_board_enter(b, members[0]);
    gp_board_enter(b, members[1]);
    return members[2] < 0;
}

static void member_calls(struct gp_board *b, int member)
{
    uint64_t limit;
    gp_board_memory_take(b, member, MIB);
    gp_board_memory_charge(b, member, MIB);
    gp_board_memory_over(b, member);
    gp_board_memory_left(b, member, &limit);
    gp_board_memory_give(b, member, 2 * MIB);
    gp_board_enter(b, member);
    gp_board_fresh(b, member);
    gp_board_started(b, member);
    gp_board_must_yield(b, member);
    gp_board_contended(b, member);
    gp_board_copy(b, member, GP_BOARD_UPLOAD, MIB);
    gp_board_copy(b, member, GP_BOARD_DOWNLOAD, MIB);
    gp_board_wait(b, member, 0);
    gp_board_count(b, member, 1, MIB);
    gp_board_host_set(b, member, MIB);
    gp_board_slice_us(b, member);
    gp_board_idle(b, member, 1000);
    gp_board_enter(b, member);
}

void board_call_all(struct gp_board *b, const int members[3])
{
    static struct gp_board_tenant tenants[GP_BOARD_TENANTS];
    static struct gp_board_process processes[GP_BOARD_MEMBERS];
    static char text[1 << 17];
    struct gp_board_gpu gpu;
    gp_board_check(b);
    for (int i = 0; i < 3; i++)
        member_calls(b, members[i]);
    gp_board_gpu_get(b, &gpu);
    gp_board_tenants(b, tenants, GP_BOARD_TENANTS);
    gp_board_processes(b, processes, GP_BOARD_MEMBERS);
    gp_board_describe(b, text, sizeof text);
    gp_board_reap(b, 0);
    gp_board_tenant_set(b, "c", &grant);
    int joined = gp_board_join(b, "c");
    if (joined >= 0)
        gp_board_leave(b, joined);
    gp_board_tenant_remove(b, "c");
    gp_board_reap(b, (int32_t)getpid());
    gp_board_leave(b, members[0]);
    gpu = (struct gp_board_gpu){.policy = GP_POLICY_WEIGHTED,
                                .max_inst = 20,
                                .prio_ratio = 90,
                                .hardware = 1,
                                .memory_total = 1024 * MIB};
    gp_board_gpu_set(b, &gpu);
    gp_board_tenant_remove(b, "a");
}
