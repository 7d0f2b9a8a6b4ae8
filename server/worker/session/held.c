#include "held.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

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
    int (*by_pci)(const char *bus_id, void **device);
    int (*processes_of)(void *device, unsigned *count, struct process_info *infos);
    void *devices[GP_DEVICES_MAX];
    struct process_info infos[PROCESSES_MAX];
};

static void open_nvml(struct gpw_held *h)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    h->by_pci = (__typeof__(h->by_pci))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    h->processes_of = (__typeof__(h->processes_of))dlsym(library,
                                                         "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!init || !h->by_pci || init() != 0)
        h->processes_of = NULL;
}

/* Looked for once; NULL where there is no NVML. */
static struct gpw_held *nvml_of(struct gpw_session *s)
{
    if (!s->held && (s->held = calloc(1, sizeof *s->held)))
        open_nvml(s->held);
    return s->held && s->held->processes_of ? s->held : NULL;
}

static void *nvml_device(struct gpw_session *s, struct gpw_held *h, uint32_t ordinal)
{
    char bus_id[32];
    if (!h->devices[ordinal] &&
        s->driver->cuDeviceGetPCIBusId(bus_id, sizeof bus_id, s->devices[ordinal]) == CUDA_SUCCESS)
        h->by_pci(bus_id, &h->devices[ordinal]);
    return h->devices[ordinal];
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
    struct gpw_held *h = gpw_slices_groups() ? nvml_of(s) : NULL; /* no kernel driver, no NVML */
    void *device = h ? nvml_device(s, h, ordinal) : NULL;
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
