/* Hostile answers to "nvml": nothing is read outside them or written outside the state. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void device_check(const struct gpc_nvml_device *d)
{
#define CHECK(name, word, field, room)                                                             \
    if (!memchr(d->field, '\0', sizeof d->field))                                                  \
        abort();
    GPC_NVML_TEXTS(CHECK)
#undef CHECK
    if (d->process_count > GPC_NVML_PROCESSES)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct gpc_nvml_state state, newer;
    struct gpc_nvml_page page;
    memset(&state, 0, sizeof state);
    int rc = gpc_nvml_answer_read((const char *)data, size, &state, &page);
    if (state.count > GPC_NVML_DEVICES || page.next >= GPC_NVML_DEVICES)
        abort();
    for (uint32_t i = 0; i < state.count; i++)
        device_check(&state.device[i]);
    if (rc != 0 || !gpc_nvml_answer_complete(&state))
        return 0;
    newer = state; /* what is complete finds itself */
    for (uint32_t i = 0; i < state.count; i++)
        if (!gpc_nvml_device_renew(&state.device[i], &newer))
            abort();
    return 0;
}
