/*
 * Sets of events, in which none ever happens: a tenant is told of no event of the
 * hardware. Programs that wait for Xid errors wait as long as they would on a sound GPU.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "nvml_device.h"

#define SETS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char made[SETS]; /* a set is the address of its byte */

static bool is_set(nvmlEventSet_t set)
{
    uintptr_t at = (uintptr_t)set - (uintptr_t)made;
    pthread_mutex_lock(&lock);
    bool is = at < SETS && made[at];
    pthread_mutex_unlock(&lock);
    return is;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    r = NVML_ERROR_INSUFFICIENT_RESOURCES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SETS && r != NVML_SUCCESS; i++) {
        if (made[i])
            continue;
        made[i] = 1;
        *set = (nvmlEventSet_t)(uintptr_t)&made[i];
        r = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!is_set(set))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    made[(uintptr_t)set - (uintptr_t)made] = 0;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device,
                                                      unsigned long long eventTypes,
                                                      nvmlEventSet_t set)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!is_set(set))
        return NVML_ERROR_INVALID_ARGUMENT;
    return eventTypes == nvmlEventTypeNone ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                                 unsigned int timeoutms)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!is_set(set) || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec left = {timeoutms / 1000, (long)(timeoutms % 1000) * 1000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        continue;
    return NVML_ERROR_TIMEOUT;
}
