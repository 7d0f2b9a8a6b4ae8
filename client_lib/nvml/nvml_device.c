#include "nvml_device.h"

#include <string.h>

#include "call.h"
#include "nvml_state.h"

/* A handle is the address of its device's byte here, so any other value is seen. */
static const char handles[GPC_NVML_DEVICES];

static const bool is_fresh[] = {
#define ROW(name, word, fresh) [name] = fresh,
    GPC_NVML_FACTS(ROW)
#undef ROW
};

nvmlDevice_t gpc_nvml_handle(uint32_t index)
{
    return index < GPC_NVML_DEVICES ? (nvmlDevice_t)(uintptr_t)&handles[index] : NULL;
}

int gpc_nvml_index(nvmlDevice_t device)
{
    uintptr_t at = (uintptr_t)device - (uintptr_t)handles;
    return at < GPC_NVML_DEVICES ? (int)at : -1;
}

/* Borrow the state for one device of it. */
static nvmlReturn_t borrow(nvmlDevice_t device, bool fresh, const struct gpc_nvml_device **d)
{
    const struct gpc_nvml_state *state;
    nvmlReturn_t r = gpc_nvml_borrow(fresh, &state);
    if (r != NVML_SUCCESS)
        return r;
    int index = gpc_nvml_index(device);
    if (index < 0 || (uint32_t)index >= state->count)
        r = NVML_ERROR_INVALID_ARGUMENT;
    else if (gpc_nvml_is_lost((uint32_t)index))
        r = NVML_ERROR_GPU_IS_LOST;
    if (r != NVML_SUCCESS) {
        gpc_nvml_give_back();
        return r;
    }
    *d = &state->device[index];
    return NVML_SUCCESS;
}

nvmlReturn_t gpc_nvml_ready(void)
{
    const struct gpc_nvml_state *state;
    nvmlReturn_t r = gpc_nvml_borrow(false, &state);
    if (r == NVML_SUCCESS)
        gpc_nvml_give_back();
    return r;
}

nvmlReturn_t gpc_nvml_known(nvmlDevice_t device)
{
    const struct gpc_nvml_device *d;
    nvmlReturn_t r = borrow(device, false, &d);
    if (r == NVML_SUCCESS)
        gpc_nvml_give_back();
    return r;
}

nvmlReturn_t gpc_nvml_bad_argument(nvmlDevice_t device)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    return r == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : r;
}

nvmlReturn_t gpc_nvml_facts(nvmlDevice_t device, const enum gpc_nvml_fact *wanted, int count,
                            unsigned long long *got)
{
    bool fresh = false;
    for (int i = 0; i < count; i++)
        fresh = fresh || is_fresh[wanted[i]];
    const struct gpc_nvml_device *d;
    nvmlReturn_t r = borrow(device, fresh, &d);
    if (r != NVML_SUCCESS)
        return r;
    for (int i = 0; i < count && r == NVML_SUCCESS; i++)
        if (!d->has[wanted[i]])
            r = NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < count && r == NVML_SUCCESS; i++)
        got[i] = d->fact[wanted[i]];
    gpc_nvml_give_back();
    return r;
}

nvmlReturn_t gpc_nvml_fact(nvmlDevice_t device, enum gpc_nvml_fact wanted, unsigned long long *got)
{
    return gpc_nvml_facts(device, &wanted, 1, got);
}

nvmlReturn_t gpc_nvml_fact_or(nvmlDevice_t device, enum gpc_nvml_fact wanted,
                              unsigned long long otherwise, unsigned long long *got)
{
    nvmlReturn_t r = gpc_nvml_fact(device, wanted, got);
    if (r != NVML_ERROR_NOT_SUPPORTED)
        return r;
    *got = otherwise;
    return NVML_SUCCESS;
}

static const char *text_of(const struct gpc_nvml_device *d, enum gpc_nvml_text wanted)
{
    switch (wanted) {
#define CASE(name, word, field, size)                                                              \
    case name:                                                                                     \
        return d->field;
        GPC_NVML_TEXTS(CASE)
#undef CASE
    case GP_NVML_TEXT_COUNT:
        break;
    }
    return "";
}

nvmlReturn_t gpc_nvml_give_text(const char *from, char *to, unsigned int length)
{
    size_t size = strlen(from) + 1;
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, size);
    return NVML_SUCCESS;
}

nvmlReturn_t gpc_nvml_text(nvmlDevice_t device, enum gpc_nvml_text wanted, char *text,
                           unsigned int length)
{
    const struct gpc_nvml_device *d;
    nvmlReturn_t r = borrow(device, false, &d);
    if (r != NVML_SUCCESS)
        return r;
    const char *from = text_of(d, wanted);
    r = *from ? gpc_nvml_give_text(from, text, length) : NVML_ERROR_NOT_SUPPORTED;
    gpc_nvml_give_back();
    return r;
}

nvmlReturn_t gpc_nvml_processes(nvmlDevice_t device, struct gpc_nvml_process *processes,
                                unsigned int *count)
{
    const struct gpc_nvml_device *d;
    nvmlReturn_t r = borrow(device, true, &d);
    if (r != NVML_SUCCESS)
        return r;
    *count = d->process_count;
    memcpy(processes, d->process, d->process_count * sizeof *processes);
    gpc_nvml_give_back();
    return NVML_SUCCESS;
}

nvmlReturn_t gpc_nvml_refuse(const char *function)
{
    nvmlReturn_t r = gpc_nvml_ready();
    gpc_log(GPC_LOG_DEBUG, "%s is not supported", function);
    return r == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : r;
}

nvmlReturn_t gpc_nvml_refuse_device(const char *function, nvmlDevice_t device)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    gpc_log(GPC_LOG_DEBUG, "%s is not supported", function);
    return r == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : r;
}
