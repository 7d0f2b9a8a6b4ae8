/*
 * The slices that every policy gives (server/arbiter/entitle.c), on a simulated soft device
 * whose tenants always have kernels to run: what each gets of it by slices alone.
 */
#include "simulated_device.h"

#include "board.h"

struct share {
    struct gp_board *board;
    int member[PROCESSES];
    unsigned members;
};

static void board_begin(struct share *s, uint32_t policy)
{
    const struct gp_board_gpu gpu = {
        .policy = policy, .max_inst = 20, .prio_ratio = 90, .hardware = 1, .memory_total = 1 << 30};
    s->members = 0;
    assert_int_equal(gp_board_new(&s->board), 0);
    assert_int_equal(gp_board_gpu_set(s->board, &gpu), 0);
}

static void board_end(struct share *s)
{
    gp_board_free(s->board);
}

static void tenant(struct share *s, const char *name, uint32_t weight, uint32_t share,
                   bool high_priority)
{
    const struct gp_board_grant grant = {
        .weight = weight, .share = share, .ceiling = 1000, .high_priority = high_priority};
    assert_int_equal(gp_board_tenant_set(s->board, name, &grant), 0);
}

/* A process of a tenant, on the board and on the device. */
static struct process *join(struct share *s, struct device *d, const char *name)
{
    int member = gp_board_join(s->board, name);
    assert_true(member >= 0);
    s->member[s->members++] = member;
    return start(d, 0);
}

/* As gpw_gate_tick has it in each worker. */
static void set_slices(const struct share *s, struct device *d)
{
    for (unsigned i = 0; i < s->members; i++)
        assert_int_equal(sg_runlist_slice(d->list, d->process[i].entry,
                                          gp_board_slice_us(s->board, s->member[i])),
                         0);
}

/* Weights 4 and 1, shares 60 % and 20 %: what the two get of 600 ms. */
static void test_two_tenants(void **state)
{
    static const struct {
        uint32_t policy;
        uint64_t red, blue; /* ms */
    } rows[] = {
        {GP_POLICY_AVERAGE, 300, 300},  {GP_POLICY_PREEMPTIVE, 300, 300},
        {GP_POLICY_WEIGHTED, 480, 120}, {GP_POLICY_FIXED, 480, 120},
        {GP_POLICY_WEAK, 300, 300},     {GP_POLICY_NATIVE, 300, 300},
        {GP_POLICY_SHARE, 450, 150},
    };
    struct device *d = *state;
    struct share s;
    board_begin(&s, GP_POLICY_WEAK);
    tenant(&s, "red", 4, 600, false);
    tenant(&s, "blue", 1, 200, false);
    struct process *red = join(&s, d, "red"), *blue = join(&s, d, "blue");
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct gp_board_gpu gpu;
        gp_board_gpu_get(s.board, &gpu);
        gpu.policy = rows[i].policy;
        assert_int_equal(gp_board_gpu_set(s.board, &gpu), 0);
        set_slices(&s, d);
        /* both begin anew, so that no turn from before is counted */
        red->idle = blue->idle = true;
        run(d, 1);
        red->idle = blue->idle = false;
        uint64_t of_red = red->work_ns, of_blue = blue->work_ns;
        run(d, 600);
        assert_int_equal(red->work_ns - of_red, rows[i].red * MS);
        assert_int_equal(blue->work_ns - of_blue, rows[i].blue * MS);
    }
    board_end(&s);
}

static void test_weights_one_and_nine(void **state)
{
    struct device *d = *state;
    struct share s;
    board_begin(&s, GP_POLICY_WEIGHTED);
    tenant(&s, "red", 1, 100, false);
    tenant(&s, "blue", 9, 100, false);
    struct process *red = join(&s, d, "red"), *blue = join(&s, d, "blue");
    set_slices(&s, d);
    run(d, 1000);
    assert_int_equal(red->work_ns, 100 * MS);
    assert_int_equal(blue->work_ns, 900 * MS);
    board_end(&s);
}

static void test_a_tenants_processes_share_its_time(void **state)
{
    struct device *d = *state;
    struct share s;
    board_begin(&s, GP_POLICY_WEAK);
    tenant(&s, "red", 1, 100, false);
    tenant(&s, "blue", 1, 100, false);
    struct process *red = join(&s, d, "red"), *also = join(&s, d, "red");
    struct process *blue = join(&s, d, "blue");
    set_slices(&s, d);
    run(d, 400);
    assert_int_equal(red->work_ns, 100 * MS);
    assert_int_equal(also->work_ns, 100 * MS);
    assert_int_equal(blue->work_ns, 200 * MS);
    board_end(&s);
}

/* Under any policy with slices: in within 0.3 ms, and not soon out again. */
static void test_high_priority(void **state)
{
    struct device *d = *state;
    struct share s;
    board_begin(&s, GP_POLICY_SHARE);
    tenant(&s, "red", 1, 500, false);
    tenant(&s, "blue", 1, 500, true);
    struct process *red = join(&s, d, "red"), *blue = join(&s, d, "blue");
    blue->busy_ns = blue->left_ns = 10 * MS;
    blue->idle_ns = 10 * MS;
    set_slices(&s, d);
    run(d, 2000);
    assert_in_range(blue->worst_ns, 0, 300 * US);
    assert_int_equal(entry_of(d, blue)->preempted, 0);
    assert_true(blue->work_ns >= 980 * MS);
    assert_int_equal(red->work_ns + blue->work_ns, 2000 * MS);
    /* gone from the board, the other has long slices again */
    gp_board_leave(s.board, s.member[1]);
    s.members = 1;
    set_slices(&s, d);
    assert_int_equal(entry_of(d, red)->slice_us, 10000);
    board_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_DEVICE(test_two_tenants),
        ON_A_DEVICE(test_weights_one_and_nine),
        ON_A_DEVICE(test_a_tenants_processes_share_its_time),
        ON_A_DEVICE(test_high_priority),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
