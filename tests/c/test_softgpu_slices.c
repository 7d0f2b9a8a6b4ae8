/*
 * A soft device's runlist, simulated: slices to the microsecond, processes that come, wait,
 * leave, die and hang; and the file itself.
 */
#include <sys/stat.h>

#include "simulated_device.h"

static void test_one_to_two(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 1000), *b = start(d, 2000);
    run(d, 300);
    assert_int_equal(a->work_ns, 100 * MS);
    assert_int_equal(b->work_ns, 200 * MS);
    assert_int_equal(entry_of(d, a)->turns, 100);
    assert_int_equal(entry_of(d, b)->turns, 100);
    assert_int_equal(entry_of(d, a)->granted_us, 100000);
    assert_int_equal(entry_of(d, b)->granted_us, 200000);
    assert_int_equal(entry_of(d, a)->preempted, 100);
}

static void test_one_to_nine(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 10000), *b = start(d, 90000);
    run(d, 2000);
    assert_int_equal(a->work_ns, 200 * MS);
    assert_int_equal(b->work_ns, 1800 * MS);
    assert_int_equal(a->worst_ns, 90 * MS);
}

static void test_four_with_slices_of_their_own(void **state)
{
    struct device *d = *state;
    static const uint64_t us[PROCESSES] = {1000, 2000, 3000, 0};
    for (unsigned i = 0; i < PROCESSES; i++)
        start(d, us[i]);
    run(d, 8 * 50);
    for (unsigned i = 0; i < PROCESSES; i++) {
        uint64_t slice = us[i] ? us[i] : SG_SLICE_US;
        assert_int_equal(d->process[i].work_ns, 50 * slice * US);
        assert_int_equal(d->process[i].worst_ns, (8000 - slice) * US);
    }
}

static void test_alone_keeps_the_device(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 1000);
    start(d, 1000)->idle = true; /* there, but without work */
    run(d, 500);
    assert_int_equal(a->work_ns, 500 * MS);
    assert_int_equal(entry_of(d, a)->turns, 1);
    assert_int_equal(entry_of(d, a)->preempted, 0);
}

static void test_a_late_comer_waits_for_the_slice_under_way(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 4000);
    run(d, 101); /* 25 slices of its own and a quarter */
    struct process *b = start(d, 4000);
    run(d, 3);
    assert_int_equal(b->work_ns, 0);
    run(d, 4);
    assert_int_equal(b->work_ns, 4 * MS);
    uint64_t before = a->work_ns;
    run(d, 80);
    assert_int_equal(a->work_ns - before, 40 * MS);
    assert_int_equal(b->work_ns, 44 * MS);
}

static void test_one_that_leaves_gives_its_time_to_the_others(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000), *c = start(d, 2000);
    run(d, 60);
    assert_int_equal(b->work_ns, 20 * MS);
    b->idle = true;
    run(d, 60);
    assert_int_equal(a->work_ns, 50 * MS);
    assert_int_equal(b->work_ns, 20 * MS);
    assert_int_equal(c->work_ns, 50 * MS);
    sg_runlist_leave(d->list, b->entry);
    b->dead = true;
    run(d, 60);
    assert_int_equal(a->work_ns, 80 * MS);
    assert_int_equal(c->work_ns, 80 * MS);
}

/* What one leaves unused of its slice is not given back to it later. */
static void test_one_that_often_waits(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 4000), *b = start(d, 4000);
    b->busy_ns = b->left_ns = 1 * MS;
    b->idle_ns = 2 * MS;
    run(d, 500);
    assert_int_equal(a->work_ns, 400 * MS); /* 4 ms of a, 1 ms of b, and so on */
    assert_int_equal(b->work_ns, 100 * MS);
    assert_true(entry_of(d, b)->preempted == 0);
}

static void test_killed_with_the_device(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000);
    run(d, 41); /* in the middle of a's slice */
    assert_int_equal(d->list->file->holder, a->entry);
    a->dead = true;
    uint64_t before = b->work_ns;
    run(d, 10);
    assert_int_equal(b->work_ns - before, 10 * MS);
    assert_int_equal(d->list->file->entries[a->entry].pid, 0);
    struct process *c = start(d, 2000); /* takes its place */
    assert_int_equal(c->entry, a->entry);
    before = b->work_ns;
    run(d, 40);
    assert_in_range(b->work_ns - before, 20 * MS, 22 * MS);
    assert_int_equal(b->work_ns - before + c->work_ns, 40 * MS);
}

static void test_killed_while_it_waits(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000), *c = start(d, 2000);
    run(d, 1);
    b->dead = true;
    run(d, 40);
    assert_int_equal(b->work_ns, 0);
    assert_int_equal(a->work_ns + c->work_ns, 41 * MS);
    assert_in_range(a->work_ns, 20 * MS, 22 * MS);
    run(d, 40);
    assert_int_equal(a->work_ns + c->work_ns, 81 * MS);
}

static void test_one_that_is_stopped_in_its_turn_loses_it(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000);
    run(d, 41);
    assert_int_equal(d->list->file->holder, a->entry);
    a->stopped = true;
    uint64_t grace = SG_RUNLIST_GRACE_NS / MS, before = b->work_ns;
    run(d, 1 + grace);
    assert_int_equal(b->work_ns, before);
    run(d, 100); /* it is not granted anything before it is heard of */
    assert_int_equal(b->work_ns - before, 100 * MS);
    assert_int_equal(entry_of(d, a)->revoked, 1);
    a->stopped = false;
    uint64_t had = a->work_ns;
    run(d, 80);
    assert_in_range(a->work_ns - had, 38 * MS, 42 * MS);
    assert_int_equal(entry_of(d, a)->revoked, 1);
}

static void test_slices_change_live(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000);
    run(d, 41); /* a has had half of its slice */
    assert_int_equal(a->work_ns, 21 * MS);
    assert_int_equal(sg_runlist_slice(d->list, b->entry, 6000), 0);
    run(d, 80);
    assert_int_equal(a->work_ns, (21 + 20) * MS);
    assert_int_equal(b->work_ns, (20 + 60) * MS);
    /* also of the one that has the device: again half-way, it is over now, or goes on */
    assert_int_equal(d->list->file->holder, a->entry);
    assert_int_equal(sg_runlist_slice(d->list, a->entry, 300), 0);
    run(d, 5);
    assert_int_equal(b->work_ns, (80 + 5) * MS);
    assert_int_equal(sg_runlist_slice(d->list, b->entry, 9000), 0);
    run(d, 4);
    assert_int_equal(b->work_ns, (85 + 4) * MS);
    run(d, 1);
    assert_int_equal(a->work_ns, 41 * MS + 300 * US);
    assert_int_equal(sg_runlist_slice(d->list, a->entry, SG_SLICE_MOST_US + 1ull), -22);
    assert_int_equal(entry_of(d, a)->slice_us, 300);
}

/* As the policies set them for a tenant of high priority: it is in within 0.3 ms. */
static void test_short_slices_let_others_in_at_once(void **state)
{
    struct device *d = *state;
    struct process *low = start(d, 300), *high = start(d, 20000);
    high->busy_ns = high->left_ns = 5 * MS;
    high->idle_ns = 5 * MS;
    run(d, 1000);
    assert_true(high->worst_ns <= 300 * US);
    assert_true(high->work_ns >= 480 * MS);
    assert_int_equal(low->work_ns + high->work_ns, 1000 * MS);
}

static void test_threads_run_in_their_process_turn(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000), *b = start(d, 2000);
    a->threads = THREADS;
    run(d, 400);
    assert_int_equal(a->work_ns, THREADS * 200 * MS);
    assert_int_equal(b->work_ns, 200 * MS);
    assert_int_equal(entry_of(d, a)->turns, entry_of(d, b)->turns);
}

static void test_accounts(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 1000), *b = start(d, 3000);
    char text[2048];
    sg_runlist_memory(d->list, b->entry, 5 << 20);
    run(d, 41);
    assert_int_equal(entry_of(d, a)->held_ns + entry_of(d, b)->held_ns, 40 * MS);
    int n = sg_runlist_describe(d->list->file, d->clock, text, sizeof(text));
    assert_int_equal(n, (int)strlen(text));
    char expected[256];
    snprintf(expected, sizeof(expected),
             "{\"pid\": %d, \"slice_us\": 3000, \"working\": true, \"turns\": 10, "
             "\"granted_us\": 30000, \"held_ns\": 30000000, \"preempted\": 10, \"revoked\": 0, "
             "\"memory\": 5242880}",
             b->pid);
    assert_non_null(strstr(text, expected));
    assert_int_equal(sg_runlist_describe(d->list->file, d->clock, text, 10),
                     n); /* what it would have been */
    assert_int_equal(strlen(text), 9);
    assert_int_equal(sg_runlist_describe(d->list->file, d->clock, NULL, 0), n);
}

/* --- the file ------------------------------------------------------------------------ */

static void test_a_file_that_is_something_else(void **state)
{
    struct device *d = *state;
    struct sg_runlist *other = NULL;
    char path[] = "runlist-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "hello", 5), 5);
    assert_int_equal(sg_runlist_open(path, &d->world, &other), -71);
    assert_int_equal(ftruncate(fd, (off_t)sizeof(struct sg_runlist_file)), 0);
    assert_int_equal(sg_runlist_open(path, &d->world, &other), -71);
    close(fd);
    unlink(path);
    assert_int_equal(sg_runlist_open("no/such/folder", &d->world, &other), -2);
    assert_null(other);
}

/* Whoever looks without the lock meets whatever the processes have written there. */
static void test_a_copy_of_anything(void **state)
{
    struct device *d = *state;
    static struct sg_runlist_file copy;
    char text[2048], link[80];
    start(d, 2000);
    run(d, 10);
    pthread_mutex_lock(&d->list->file->lock); /* nobody waits for that */
    assert_int_equal(sg_runlist_copy(d->path, &copy), 0);
    pthread_mutex_unlock(&d->list->file->lock);
    assert_true(sg_runlist_describe(&copy, d->clock, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "\"pid\": 100"));
    d->list->file->holder = SG_RUNLIST_ENTRIES;
    assert_int_equal(sg_runlist_copy(d->path, &copy), -71);
    d->list->file->holder = -1;
    d->list->file->top = SG_RUNLIST_ENTRIES + 1;
    assert_int_equal(sg_runlist_copy(d->path, &copy), -71);
    d->list->file->top = 0;
    snprintf(link, sizeof(link), "%s.link", d->path);
    assert_int_equal(symlink(d->path, link), 0);
    assert_true(sg_runlist_copy(link, &copy) < 0);
    unlink(link);
    assert_int_equal(mkfifo(link, 0600), 0);
    assert_int_equal(sg_runlist_copy(link, &copy), -71);
    unlink(link);
    assert_int_equal(sg_runlist_copy("no/such/folder", &copy), -2);
    assert_int_equal(truncate(d->path, 4096), 0); /* the mapping is of no use any more */
    assert_int_equal(sg_runlist_copy(d->path, &copy), -71);
    assert_int_equal(truncate(d->path, (off_t)sizeof(copy)), 0);
}

static void test_a_file_whose_maker_died(void **state)
{
    struct device *d = *state;
    struct sg_runlist *other = NULL;
    char path[] = "runlist-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(ftruncate(fd, (off_t)sizeof(struct sg_runlist_file)), 0);
    assert_int_equal(sg_runlist_open(path, &d->world, &other), 0);
    assert_int_equal(other->file->holder, -1);
    sg_runlist_close(other);
    close(fd);
    unlink(path);
}

static void test_full(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000);
    for (int i = 1; i < SG_RUNLIST_ENTRIES; i++)
        assert_int_equal(sg_runlist_join(d->list, a->pid, (uint64_t)a->pid * 10), i);
    assert_int_equal(sg_runlist_join(d->list, a->pid, (uint64_t)a->pid * 10), -28);
    a->dead = true; /* and all are taken out */
    assert_int_equal(sg_runlist_join(d->list, a->pid, (uint64_t)a->pid * 10), 0);
}

/* Whoever has the device may write there; what is out of its range is made right. */
static void test_indices_that_cannot_be(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 1000), *b = start(d, 1000);
    const int32_t wrong[] = {SG_RUNLIST_ENTRIES, 1 << 30, -2, INT32_MIN};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        run(d, 10);
        d->list->file->holder = wrong[i];
        d->list->file->top = (uint32_t)wrong[i];
        d->list->file->last = (uint32_t)wrong[i];
    }
    uint64_t had_a = a->work_ns, had_b = b->work_ns;
    run(d, 100);
    assert_true(a->work_ns - had_a >= 40 * MS);
    assert_true(b->work_ns - had_b >= 40 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_DEVICE(test_one_to_two),
        ON_A_DEVICE(test_one_to_nine),
        ON_A_DEVICE(test_four_with_slices_of_their_own),
        ON_A_DEVICE(test_alone_keeps_the_device),
        ON_A_DEVICE(test_a_late_comer_waits_for_the_slice_under_way),
        ON_A_DEVICE(test_one_that_leaves_gives_its_time_to_the_others),
        ON_A_DEVICE(test_one_that_often_waits),
        ON_A_DEVICE(test_killed_with_the_device),
        ON_A_DEVICE(test_killed_while_it_waits),
        ON_A_DEVICE(test_one_that_is_stopped_in_its_turn_loses_it),
        ON_A_DEVICE(test_slices_change_live),
        ON_A_DEVICE(test_short_slices_let_others_in_at_once),
        ON_A_DEVICE(test_threads_run_in_their_process_turn),
        ON_A_DEVICE(test_accounts),
        ON_A_DEVICE(test_a_file_that_is_something_else),
        ON_A_DEVICE(test_a_copy_of_anything),
        ON_A_DEVICE(test_a_file_whose_maker_died),
        ON_A_DEVICE(test_full),
        ON_A_DEVICE(test_indices_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
