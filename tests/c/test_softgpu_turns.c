/*
 * A soft device's runlist with real threads and real processes, some of them killed: only
 * order and counts are asserted.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "simulated_device.h"

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
    struct pages *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                           0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_DEVICE(test_threads),
        ON_A_DEVICE(test_processes_of_which_one_is_killed),
        ON_A_DEVICE(test_the_lock_survives_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
