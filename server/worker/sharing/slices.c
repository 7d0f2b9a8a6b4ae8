#include "slices.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The resource manager's interface, as the open kernel driver has it. */
#define RM_TYPE 'F'
#define RM_FREE 0x29
#define RM_CONTROL 0x2a
#define RM_ALLOC 0x2b
#define CHANNEL_GROUP_CLASS 0xa06cu
#define GROUP_SET_TIMESLICE 0xa06c0103u
#define GROUP_GET_TIMESLICE 0xa06c0104u

struct rm_alloc { /* how it begins; there are longer forms */
    uint32_t root, parent, object, class;
};

struct rm_free {
    uint32_t root, parent, object, status;
};

struct rm_control {
    uint32_t client, object, command, flags;
    uint64_t params __attribute__((aligned(8)));
    uint32_t params_size, status;
};

struct group {
    int fd;
    uint32_t root, object, ordinal;
    uint64_t original_us, set_us; /* 0: not known, not set */
};

/* Of the process and not of its session: the driver's own calls of ioctl() come here, on any
 * thread and before there is a session, and bring nothing by which one could be found. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups;
static unsigned count, room;
static struct {
    uint32_t device; /* whose groups are allocated */
    bool used;       /* something was; without the lock */
} kernel;

/* Of a driver that sets slices itself, which the soft GPU does; NULL: through the kernel. */
static CUresult (*set_soft)(CUdevice device, unsigned long long us);
static const struct gpw_session *session;
static uint64_t soft_us[GP_DEVICES_MAX];

static int kernel_ioctl(int fd, unsigned long request, void *arg)
{
    return (int)syscall(SYS_ioctl, fd, request, arg);
}

static bool control(const struct group *g, uint32_t command, uint64_t *us)
{
    struct rm_control c = {.client = g->root,
                           .object = g->object,
                           .command = command,
                           .params = (uint64_t)(uintptr_t)us,
                           .params_size = sizeof *us};
    return kernel_ioctl(g->fd, _IOWR(RM_TYPE, RM_CONTROL, struct rm_control), &c) == 0 &&
           c.status == 0;
}

static void apply(struct group *g, uint64_t us)
{
    if (!g->original_us && !control(g, GROUP_GET_TIMESLICE, &g->original_us))
        return;
    uint64_t value = us ? us : g->original_us;
    if (value == (g->set_us ? g->set_us : g->original_us))
        return;
    if (control(g, GROUP_SET_TIMESLICE, &value))
        g->set_us = value;
}

static void group_add(int fd, const struct rm_alloc *a)
{
    if (count == room) {
        unsigned more = room ? 2 * room : 16;
        struct group *grown = realloc(groups, more * sizeof *grown);
        if (!grown)
            return; /* this group keeps the driver's slice */
        groups = grown;
        room = more;
    }
    groups[count] = (struct group){fd, a->root, a->object, kernel.device, 0, 0};
    count++;
    /* its slice is set at the next tick: it has no channel to be scheduled yet */
}

static void group_remove(uint32_t root, uint32_t object)
{
    for (unsigned i = 0; i < count;)
        if (groups[i].root == root && (groups[i].object == object || root == object))
            groups[i] = groups[--count];
        else
            i++;
}

static void watch(int fd, unsigned long request, void *arg)
{
    unsigned number = _IOC_NR(request);
    if (number == RM_ALLOC && _IOC_SIZE(request) >= sizeof(struct rm_alloc)) {
        const struct rm_alloc *a = arg;
        __atomic_store_n(&kernel.used, true, __ATOMIC_RELAXED);
        if (a->class == CHANNEL_GROUP_CLASS) {
            pthread_mutex_lock(&lock);
            group_add(fd, a);
            pthread_mutex_unlock(&lock);
        }
    } else if (number == RM_FREE && _IOC_SIZE(request) >= sizeof(struct rm_free)) {
        const struct rm_free *f = arg;
        pthread_mutex_lock(&lock);
        group_remove(f->root, f->object);
        pthread_mutex_unlock(&lock);
    }
}

/* The driver library's ioctl is this one: a program's own symbols come first. */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *arg = va_arg(args, void *);
    va_end(args);
    int r = kernel_ioctl(fd, request, arg);
    if (r == 0 && _IOC_TYPE(request) == RM_TYPE && arg) {
        int error = errno;
        watch(fd, request, arg);
        errno = error;
    }
    return r;
}

void gpw_slices_open(const struct gpw_session *s)
{
    session = s;
    if (s->soft)
        set_soft = (__typeof__(set_soft))dlsym(s->driver->library, "sgSetTimeSlice");
}

/* The calling thread is the only one that sets slices. */
static void soft_apply(uint32_t ordinal, uint64_t us)
{
    if (us == soft_us[ordinal])
        return;
    CUresult r = set_soft(session->devices[ordinal], us);
    if (r == CUDA_SUCCESS)
        soft_us[ordinal] = us;
}

void gpw_slices_device(uint32_t ordinal)
{
    pthread_mutex_lock(&lock);
    kernel.device = ordinal;
    pthread_mutex_unlock(&lock);
}

void gpw_slices_set(uint32_t ordinal, uint64_t us)
{
    if (set_soft) {
        soft_apply(ordinal, us);
        return;
    }
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        if (groups[i].ordinal == ordinal && (us || groups[i].set_us))
            apply(&groups[i], us);
    pthread_mutex_unlock(&lock);
}

bool gpw_slices_kernel(void)
{
    return __atomic_load_n(&kernel.used, __ATOMIC_RELAXED);
}

unsigned gpw_slices_groups(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = count;
    pthread_mutex_unlock(&lock);
    return n;
}
