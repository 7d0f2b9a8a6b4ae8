#include "timeslice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runlist.h"

/* A holder's death wakes nobody: those who wait look so often. */
#define LOOK_NS 20000000u

/* This process's place on a device. */
struct place {
    struct sg_runlist *list; /* NULL: the device is this process's own */
    int entry;
    bool opened; /* it has been tried */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place places[SG_MAX_DEVICES];

/* What this thread has. */
static _Thread_local struct {
    const struct place *place; /* NULL: no device */
    volatile int *cancel;      /* of the kernel that runs */
} own;

/* As others see this process: in a pid namespace it does not know that by itself. */
static int32_t own_pid(void)
{
    const char *told = getenv("GPUPOOL_PID");
    int pid = told ? atoi(told) : 0;
    return pid > 0 ? pid : (int32_t)getpid();
}

static void place_open(struct place *p, int ordinal, const char *folder)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%d.v%u.runlist", folder, ordinal, SG_RUNLIST_VERSION);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        sg_complain("GPUPOOL_SOFT_TIME is too long; device %d is shared without slices", ordinal);
        return;
    }
    int r = sg_runlist_open(path, &sg_runlist_real, &p->list);
    if (r == 0)
        p->entry = sg_runlist_join(p->list, own_pid(), sg_process_start((int32_t)getpid()));
    if (r == 0 && p->entry < 0) {
        r = p->entry;
        sg_runlist_close(p->list);
        p->list = NULL;
    }
    if (r != 0)
        sg_complain("cannot join the runlist %s: %s; device %d is shared without slices", path,
                    r == -EPROTO   ? "it is something else, remove it"
                    : r == -ENOSPC ? "it is full"
                                   : strerror(-r),
                    ordinal);
}

/* Not before it is needed: a process that only asks what devices there are has no place. */
static struct place *place_of(int ordinal)
{
    struct place *p = &places[ordinal];
    pthread_mutex_lock(&lock);
    if (!p->opened) {
        const char *folder = getenv("GPUPOOL_SOFT_TIME");
        if (folder && *folder)
            place_open(p, ordinal, folder);
        p->opened = true;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static bool wait_for_turn(const struct place *p, const volatile int *cancel)
{
    for (;;) {
        uint32_t seen = sg_runlist_seen(p->list, p->entry);
        if (sg_runlist_ask(p->list, p->entry))
            return true;
        if (__atomic_load_n(cancel, __ATOMIC_RELAXED)) {
            sg_runlist_withdraw(p->list, p->entry);
            return false;
        }
        sg_runlist_wait(p->list, p->entry, seen, LOOK_NS);
    }
}

void sg_time_memory(struct sg_device *device, int64_t change)
{
    device->memory_used += (uint64_t)change;
    const struct place *p = place_of(device->ordinal);
    if (p->list)
        sg_runlist_memory(p->list, p->entry, device->memory_used);
}

bool sg_time_enter(const struct sg_device *device, volatile int *cancel)
{
    const struct place *p = place_of(device->ordinal);
    own.cancel = cancel;
    if (own.place == p || !p->list)
        return true;
    sg_time_leave();
    if (!sg_runlist_enter(p->list, p->entry) && !wait_for_turn(p, cancel))
        return false;
    own.place = p;
    return true;
}

bool sg_time_due(void *unused)
{
    const struct place *p = own.place;
    (void)unused;
    return p && !sg_runlist_alone(p->list, p->entry) && sg_runlist_due(p->list, p->entry);
}

void sg_time_breathe(void *unused)
{
    const struct place *p = own.place;
    (void)unused;
    if (!p || sg_runlist_alone(p->list, p->entry) || sg_runlist_pause(p->list, p->entry))
        return;
    if (!wait_for_turn(p, own.cancel))
        own.place = NULL; /* the kernel ends before it does anything more */
}

void sg_time_leave(void)
{
    if (own.place)
        sg_runlist_finish(own.place->list, own.place->entry);
    own.place = NULL;
}

CUresult sgSetTimeSlice(CUdevice device, unsigned long long us)
{
    SG_READY();
    if (!sg_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (us > SG_SLICE_MOST_US)
        return CUDA_ERROR_INVALID_VALUE;
    struct place *p = place_of(device);
    if (p->list && sg_runlist_slice(p->list, p->entry, us) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

int sgTimeDescribe(const char *path, char *out, int size)
{
    if (!path || size < 0 || (size && !out))
        return -EINVAL;
    struct sg_runlist_file *copy = malloc(sizeof(*copy));
    if (!copy)
        return -ENOMEM;
    int r = sg_runlist_copy(path, copy);
    if (r == 0)
        r = sg_runlist_describe(copy, sg_now_ns(), out, size);
    free(copy);
    return r;
}
