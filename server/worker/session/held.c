#include "held.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "own_thread.h"
#include "quota.h"
#include "slices.h"

/* Of NVML's interface, version 3 of the call (driver 510 and later). */
struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
#define PROCESSES_MAX 1024

struct gpw_held {
    struct gpw_session *session;
    bool opening; /* `thread` does it, whose is all else here until it is joined */
    pthread_t thread;
    int (*by_pci)(const char *bus_id, void **device);
    int (*processes_of)(void *device, unsigned *count, struct process_info *infos);
    void *devices[GP_DEVICES_MAX];
    struct process_info infos[PROCESSES_MAX];
};

static bool load_nvml(struct gpw_held *h)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    h->by_pci = (__typeof__(h->by_pci))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    h->processes_of = (__typeof__(h->processes_of))dlsym(library,
                                                         "nvmlDeviceGetComputeRunningProcesses_v3");
    return init && h->by_pci && h->processes_of && init() == 0;
}

/* What it asks the driver needs no context, and may be asked on any thread. */
static void *open_nvml(void *arg)
{
    struct gpw_held *h = arg;
    const struct gpw_session *s = h->session;
    char bus_id[32];
    if (!load_nvml(h))
        return NULL;
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->driver->cuDeviceGetPCIBusId(bus_id, sizeof bus_id, s->devices[i]) == CUDA_SUCCESS &&
            h->by_pci(bus_id, &h->devices[i]) != 0)
            h->devices[i] = NULL;
    return NULL;
}

void gpw_held_open(struct gpw_session *s)
{
    /* no kernel driver, no NVML */
    if (s->soft || s->held || !gpw_slices_kernel() || !(s->held = calloc(1, sizeof *s->held)))
        return;
    s->held->session = s;
    s->held->opening = gp_thread_create(&s->held->thread, "nvml", NULL, open_nvml, s->held) == 0;
    if (!s->held->opening)
        open_nvml(s->held);
}

/* NULL: it cannot be asked. */
static void *nvml_device(struct gpw_session *s, uint32_t ordinal)
{
    gpw_held_open(s);
    if (s->held && s->held->opening)
        pthread_join(s->held->thread, NULL);
    if (s->held)
        s->held->opening = false;
    return s->held ? s->held->devices[ordinal] : NULL;
}

/* Drivers take memory by themselves in such pieces. */
#define PIECE (UINT64_C(2) << 20)

/* A soft GPU's memory is its process's own, so the driver itself knows. It takes variables
 * to the byte: whole pieces are counted, so that what is left stays a number of pieces. */
static bool held_of_soft(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes)
{
    size_t free_bytes, total;
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    /* a context has ended, or it is another device's */
    if (gpw_current_ordinal(s) != (int)ordinal)
        s->driver->cuCtxSetCurrent(s->primary[ordinal]);
    bool known = s->driver->cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS;
    s->driver->cuCtxSetCurrent(before);
    if (known)
        *bytes = (total - free_bytes) / PIECE * PIECE;
    return known;
}

uint64_t gpw_held_ahead(struct gpw_session *s)
{
    return s->soft ? 0 : 4 * PIECE;
}

bool gpw_held_bytes(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes)
{
    if (s->soft)
        return held_of_soft(s, ordinal, bytes);
    void *device = gpw_slices_groups() ? nvml_device(s, ordinal) : NULL; /* else it holds nothing */
    struct gpw_held *h = s->held;
    unsigned count = PROCESSES_MAX;
    if (!device || h->processes_of(device, &count, h->infos) != 0)
        return false;
    for (unsigned i = 0; i < count; i++)
        if (h->infos[i].pid == (unsigned)getpid() && h->infos[i].used != ~0ull) {
            *bytes = h->infos[i].used;
            return true;
        }
    return false;
}
