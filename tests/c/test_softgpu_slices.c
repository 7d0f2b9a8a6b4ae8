/*
 * A soft device's runlist: simulated processes on it, by a clock that only the test moves,
 * so that who had the device for how long is exact; then real threads and real processes,
 * of which only the order and the counts are asserted.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runlist.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define PROCESSES 4
#define THREADS 3
#define TICK (100 * US)

/* --- simulated processes ----------------------------------------------------------- */

struct thread {
    bool inside, waiting;
};

struct process {
    int entry;
    int32_t pid;
    bool dead, stopped;
    uint64_t busy_ns;  /* of work, then idle_ns without, and so on; 0: never idle */
    uint64_t idle_ns;
    uint64_t left_ns;  /* until the next change between the two */
    bool idle;
    uint64_t work_ns;  /* of all its threads */
    uint64_t worst_ns; /* the longest that it waited */
    uint64_t since;
    unsigned threads;
    struct thread thread[THREADS];
};

struct device {
    uint64_t clock;
    char path[64];
    struct sg_runlist_world world;
    struct sg_runlist *list;
    struct process process[PROCESSES];
    unsigned count;
};

static uint64_t device_now(void *context)
{
    return ((struct device *)context)->clock;
}

static bool device_alive(void *context, int32_t pid, uint64_t start)
{
    const struct device *d = context;
    for (unsigned i = 0; i < d->count; i++)
        if (d->process[i].pid == pid)
            return !d->process[i].dead && start == (uint64_t)pid * 10;
    return false;
}

static int device_open(void **state)
{
    struct device *d = calloc(1, sizeof(*d));
    if (!d)
        return -1;
    d->clock = 1000 * MS;
    d->world = (struct sg_runlist_world){device_now, device_alive, d};
    strcpy(d->path, "runlist-XXXXXX");
    int fd = mkstemp(d->path);
    if (fd < 0 || close(fd) != 0 || sg_runlist_open(d->path, &d->world, &d->list) != 0)
        return -1;
    *state = d;
    return 0;
}

static int device_close(void **state)
{
    struct device *d = *state;
    sg_runlist_close(d->list);
    unlink(d->path);
    free(d);
    return 0;
}

/* A process that always has work, on one thread, with a slice of so many microseconds. */
static struct process *start(struct device *d, uint64_t slice_us)
{
    struct process *p = &d->process[d->count];
    *p = (struct process){.pid = 100 + (int32_t)d->count, .threads = 1, .since = d->clock};
    d->count++;
    p->entry = sg_runlist_join(d->list, p->pid, (uint64_t)p->pid * 10);
    assert_true(p->entry >= 0);
    assert_int_equal(sg_runlist_slice(d->list, p->entry, slice_us), 0);
    return p;
}

static const struct sg_runlist_entry *entry_of(const struct device *d, const struct process *p)
{
    return &d->list->file->entries[p->entry];
}

/* What a thread of the process does before it works, as timeslice.c has it. */
static void thread_look(struct device *d, struct process *p, struct thread *t)
{
    if (p->idle) {
        if (t->inside)
            sg_runlist_finish(d->list, p->entry);
        if (t->waiting)
            sg_runlist_withdraw(d->list, p->entry);
        *t = (struct thread){false, false};
    } else if (t->inside) {
        t->inside = sg_runlist_alone(d->list, p->entry) || sg_runlist_pause(d->list, p->entry);
        t->waiting = !t->inside;
    } else if (t->waiting) {
        t->inside = sg_runlist_ask(d->list, p->entry);
        t->waiting = !t->inside;
    } else {
        t->inside = sg_runlist_enter(d->list, p->entry);
        t->waiting = !t->inside;
    }
}

static void process_change(struct process *p)
{
    if (!p->busy_ns || p->left_ns > 0)
        return;
    p->idle = p->since != 0 && !p->idle; /* it begins with work */
    p->left_ns = p->idle ? p->idle_ns : p->busy_ns;
}

/* The threads of all processes look until nothing changes, then a tick of time passes. */
static void tick(struct device *d)
{
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < d->count; i++) {
            struct process *p = &d->process[i];
            for (unsigned t = 0; t < p->threads && !p->dead && !p->stopped; t++)
                thread_look(d, p, &p->thread[t]);
        }
    unsigned at_work = 0;
    for (unsigned i = 0; i < d->count; i++) {
        struct process *p = &d->process[i];
        bool works = false, waits = false;
        for (unsigned t = 0; t < p->threads && !p->dead && !p->stopped; t++) {
            works |= p->thread[t].inside;
            waits |= p->thread[t].waiting;
            p->work_ns += p->thread[t].inside ? TICK : 0;
        }
        at_work += works;
        if (!waits)
            p->since = d->clock + TICK;
        else if (d->clock + TICK - p->since > p->worst_ns)
            p->worst_ns = d->clock + TICK - p->since;
        if (p->busy_ns && (works || p->idle))
            p->left_ns -= TICK;
        process_change(p);
    }
    assert_true(at_work <= 1); /* never two processes at once */
    d->clock += TICK;
}

static void run(struct device *d, uint64_t ms)
{
    for (uint64_t end = d->clock + ms * MS; d->clock < end;)
        tick(d);
}

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
    run(d, 41);
    assert_int_equal(entry_of(d, a)->held_ns + entry_of(d, b)->held_ns, 40 * MS);
    int n = sg_runlist_describe(d->list, text, sizeof(text));
    assert_int_equal(n, (int)strlen(text));
    char expected[256];
    snprintf(expected, sizeof(expected),
             "{\"pid\": %d, \"slice_us\": 3000, \"working\": true, \"turns\": 10, "
             "\"granted_us\": 30000, \"held_ns\": 30000000, \"preempted\": 10, \"revoked\": 0}",
             b->pid);
    assert_non_null(strstr(text, expected));
    assert_int_equal(sg_runlist_describe(d->list, text, 10), n); /* what it would have been */
    assert_int_equal(strlen(text), 9);
    assert_int_equal(sg_runlist_describe(d->list, NULL, 0), n);
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

/* --- real threads and processes -------------------------------------------------------- */

struct pages {
    uint32_t at_work; /* entries that run now */
    uint32_t clashes;
    uint64_t steps[2];
    uint32_t stop;
};

struct worker {
    struct sg_runlist *list;
    struct pages *pages;
    int entry, which;
};

static void await_turn(const struct worker *w)
{
    for (;;) {
        uint32_t seen = sg_runlist_seen(w->list, w->entry);
        if (sg_runlist_ask(w->list, w->entry))
            return;
        sg_runlist_wait(w->list, w->entry, seen, 5 * MS);
    }
}

/* A kernel of many steps, each of which sees whether another process is at work. */
static void *work(void *argument)
{
    const struct worker *w = argument;
    struct pages *s = w->pages;
    uint32_t bit = 1u << w->which;
    if (!sg_runlist_enter(w->list, w->entry))
        await_turn(w);
    while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
        if (__atomic_fetch_or(&s->at_work, bit, __ATOMIC_ACQ_REL) & ~bit)
            __atomic_fetch_add(&s->clashes, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->steps[w->which], 1, __ATOMIC_RELAXED);
        __atomic_fetch_and(&s->at_work, ~bit, __ATOMIC_ACQ_REL);
        if (!sg_runlist_alone(w->list, w->entry) && !sg_runlist_pause(w->list, w->entry))
            await_turn(w);
    }
    sg_runlist_finish(w->list, w->entry);
    return NULL;
}

static struct pages *pages_make(void)
{
    struct pages *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    return s;
}

static uint64_t turns(const struct sg_runlist *list, int entry)
{
    return __atomic_load_n(&list->file->entries[entry].turns, __ATOMIC_RELAXED);
}

static void until_turns(const struct sg_runlist *list, int entry, uint64_t n)
{
    while (turns(list, entry) < n)
        usleep(1000);
}

static void test_threads(void **state)
{
    struct device *d = *state;
    struct pages *s = pages_make();
    struct sg_runlist *list;
    assert_int_equal(sg_runlist_open(d->path, &sg_runlist_real, &list), 0);
    uint64_t began = sg_process_start((int32_t)getpid());
    struct worker w[2] = {{list, s, 0, 0}, {list, s, 0, 1}};
    pthread_t thread[4];
    for (int i = 0; i < 2; i++) {
        w[i].entry = sg_runlist_join(list, (int32_t)getpid(), began);
        assert_int_equal(sg_runlist_slice(list, w[i].entry, 300), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i % 2]), 0);
    until_turns(list, w[0].entry, 20);
    until_turns(list, w[1].entry, 20);
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(list->file->holder, -1);
    assert_int_equal(list->file->contended, 0);
    assert_true(s->steps[0] > 0 && s->steps[1] > 0);
    /* the two at once only after a turn was taken away, on a machine that stood still */
    uint64_t revoked = list->file->entries[w[0].entry].revoked +
                       list->file->entries[w[1].entry].revoked;
    assert_true(s->clashes == 0 || revoked > 0);
    sg_runlist_close(list);
    munmap(s, sizeof(*s));
}

static pid_t child_start(const char *path, struct pages *s, int which)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    struct worker w = {NULL, s, 0, which};
    int32_t self = (int32_t)getpid();
    if (sg_runlist_open(path, &sg_runlist_real, &w.list) != 0)
        _exit(2);
    w.entry = sg_runlist_join(w.list, self, sg_process_start(self));
    if (w.entry < 0 || sg_runlist_slice(w.list, w.entry, 300) != 0)
        _exit(2);
    work(&w);
    _exit(0);
}

static int entry_of_pid(const struct sg_runlist *list, pid_t pid)
{
    for (;;) {
        for (int i = 0; i < SG_RUNLIST_ENTRIES; i++)
            if (__atomic_load_n(&list->file->entries[i].pid, __ATOMIC_RELAXED) == pid)
                return i;
        usleep(1000);
    }
}

static void test_processes_of_which_one_is_killed(void **state)
{
    struct device *d = *state;
    struct pages *s = pages_make();
    struct sg_runlist *list;
    assert_int_equal(sg_runlist_open(d->path, &sg_runlist_real, &list), 0);
    pid_t a = child_start(d->path, s, 0), b = child_start(d->path, s, 1);
    int of_a = entry_of_pid(list, a), of_b = entry_of_pid(list, b), status;
    until_turns(list, of_a, 20);
    until_turns(list, of_b, 20);
    /* killed again and again, wherever it is: with the device, waiting, with the lock */
    for (int i = 0; i < 10; i++) {
        uint64_t had = turns(list, of_b);
        kill(a, SIGKILL);
        assert_int_equal(waitpid(a, &status, 0), a);
        __atomic_fetch_and(&s->at_work, ~1u, __ATOMIC_ACQ_REL);
        a = child_start(d->path, s, 0);
        of_a = entry_of_pid(list, a);
        until_turns(list, of_a, 3);
        until_turns(list, of_b, had + 3);
    }
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
    assert_int_equal(waitpid(a, &status, 0), a);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(waitpid(b, &status, 0), b);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sg_runlist_close(list);
    munmap(s, sizeof(*s));
}

static void test_the_lock_survives_its_owner(void **state)
{
    struct device *d = *state;
    struct process *a = start(d, 2000);
    run(d, 5);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pthread_mutex_lock(&d->list->file->lock);
        d->list->file->contended = 77; /* and half done */
        d->list->file->holder = -1;
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    struct process *b = start(d, 2000);
    run(d, 40);
    assert_int_equal(a->work_ns + b->work_ns, 45 * MS);
    assert_in_range(b->work_ns, 18 * MS, 22 * MS);
}

#define ON_A_DEVICE(test) cmocka_unit_test_setup_teardown(test, device_open, device_close)

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
        ON_A_DEVICE(test_a_file_whose_maker_died),
        ON_A_DEVICE(test_full),
        ON_A_DEVICE(test_threads),
        ON_A_DEVICE(test_processes_of_which_one_is_killed),
        ON_A_DEVICE(test_the_lock_survives_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
