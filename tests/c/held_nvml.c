/* What a worker asks of NVML, with processes that test_held.c says. */
#include <string.h>

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

extern struct process_info held_processes[2];
extern unsigned held_count, held_inits;
struct process_info held_processes[2];
unsigned held_count, held_inits;

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process_info *infos);

int nvmlInit_v2(void)
{
    held_inits++;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device)
{
    *device = strcmp(bus_id, "0000:01:00.0") == 0 ? &held_count : NULL;
    return *device ? 0 : 6; /* not found */
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process_info *infos)
{
    if (device != &held_count || *count < held_count)
        return 7; /* too small */
    memcpy(infos, held_processes, held_count * sizeof *infos);
    *count = held_count;
    return 0;
}
