#include "held.h"

#include <dlfcn.h>
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

static int (*by_pci)(const char *bus_id, void **device);
static int (*processes_of)(void *device, unsigned *count, struct process_info *infos);

/* Once; false where there is no NVML. */
static bool open_nvml(void)
{
    static bool tried;
    if (tried)
        return processes_of != NULL;
    tried = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    by_pci = (__typeof__(by_pci))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    processes_of =
        (__typeof__(processes_of))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!init || !by_pci || !processes_of || init() != 0)
        processes_of = NULL;
    return processes_of != NULL;
}

static void *nvml_device(struct gpw_session *s, uint32_t ordinal)
{
    static void *devices[GP_DEVICES_MAX];
    char bus_id[32];
    if (!devices[ordinal] &&
        s->driver->cuDeviceGetPCIBusId(bus_id, sizeof bus_id, s->devices[ordinal]) == CUDA_SUCCESS)
        by_pci(bus_id, &devices[ordinal]);
    return devices[ordinal];
}

/* Drivers take memory by themselves in such pieces. */
#define PIECE (UINT64_C(2) << 20)

/* A soft GPU's memory is its process's own, so the driver itself knows. It takes variables
 * to the byte: whole pieces are counted, so that what is left stays a number of pieces. */
static bool held_of_soft(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes)
{
    size_t free_bytes, total;
    if (gpw_current_ordinal(s) != (int)ordinal ||
        s->driver->cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS)
        return false;
    *bytes = (total - free_bytes) / PIECE * PIECE;
    return true;
}

uint64_t gpw_held_ahead(struct gpw_session *s)
{
    return s->soft ? 0 : 4 * PIECE;
}

bool gpw_held_bytes(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes)
{
    if (s->soft)
        return held_of_soft(s, ordinal, bytes);
    static struct process_info infos[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    if (gpw_slices_groups() == 0 || !open_nvml()) /* no kernel driver, no NVML */
        return false;
    void *device = nvml_device(s, ordinal);
    if (!device || processes_of(device, &count, infos) != 0)
        return false;
    for (unsigned i = 0; i < count; i++)
        if (infos[i].pid == (unsigned)getpid() && infos[i].used != ~0ull) {
            *bytes = infos[i].used;
            return true;
        }
    return false;
}
