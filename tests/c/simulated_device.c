#include "simulated_device.h"

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

int device_open(void **state)
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

int device_close(void **state)
{
    struct device *d = *state;
    sg_runlist_close(d->list);
    unlink(d->path);
    free(d);
    return 0;
}

struct process *start(struct device *d, uint64_t slice_us)
{
    struct process *p = &d->process[d->count];
    *p = (struct process){.pid = 100 + (int32_t)d->count, .threads = 1, .since = d->clock};
    d->count++;
    p->entry = sg_runlist_join(d->list, p->pid, (uint64_t)p->pid * 10);
    assert_true(p->entry >= 0);
    assert_int_equal(sg_runlist_slice(d->list, p->entry, slice_us), 0);
    return p;
}

const struct sg_runlist_entry *entry_of(const struct device *d, const struct process *p)
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

void run(struct device *d, uint64_t ms)
{
    for (uint64_t end = d->clock + ms * MS; d->clock < end;)
        tick(d);
}
