/* The functions of CUPTI that are not refused, but for callbacks (callbacks.c). */
#include <string.h>

#include "callbacks.h"
#include "cupti_export.h"
#include "profile.h"

#define ATTRIBUTES 16u

/* Hints for buffers that are the worker's: kept, so that they can be asked for. */
static uint64_t attributes[ATTRIBUTES];

#pragma GCC visibility push(default)
uint32_t cuptiActivityEnable(uint32_t kind);
uint32_t cuptiActivityDisable(uint32_t kind);
uint32_t cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable);
uint32_t cuptiActivityRegisterCallbacks(gp_cupti_requested *request, gp_cupti_completed *complete);
uint32_t cuptiActivityRegisterTimestampCallback(gpc_cupti_clock *clock);
uint32_t cuptiActivityFlush(CUcontext context, uint32_t stream, uint32_t flag);
uint32_t cuptiActivityFlushAll(uint32_t flag);
uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record);
uint32_t cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped);
uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id);
uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last);
uint32_t cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value);
uint32_t cuptiActivityGetAttribute(uint32_t attribute, size_t *size, void *value);
uint32_t cuptiGetTimestamp(uint64_t *now);
uint32_t cuptiGetResultString(uint32_t result, const char **text);
uint32_t cuptiGetLastError(void);
uint32_t cuptiGetDeviceId(CUcontext context, uint32_t *device);
uint32_t cuptiSetThreadIdType(uint32_t type);
uint32_t cuptiGetThreadIdType(uint32_t *type);
uint32_t cuptiFinalize(void);
#pragma GCC visibility pop

static __thread uint32_t last_error;

uint32_t gpc_cupti_said(uint32_t result)
{
    if (result != GP_CUPTI_SUCCESS)
        last_error = result;
    return result;
}

uint32_t cuptiActivityEnable(uint32_t kind)
{
    return gpc_cupti_said(gpc_profile_enable(kind, true));
}

uint32_t cuptiActivityDisable(uint32_t kind)
{
    return gpc_cupti_said(gpc_profile_enable(kind, false));
}

uint32_t cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable)
{
    return gpc_cupti_said(gpc_profile_skip(cbid, !enable));
}

uint32_t cuptiActivityRegisterCallbacks(gp_cupti_requested *request, gp_cupti_completed *complete)
{
    return gpc_cupti_said(gpc_profile_buffers(request, complete));
}

uint32_t cuptiActivityRegisterTimestampCallback(gpc_cupti_clock *clock)
{
    return gpc_cupti_said(gpc_profile_clock(clock));
}

uint32_t cuptiActivityFlush(CUcontext context, uint32_t stream, uint32_t flag)
{
    (void)context;
    (void)stream;
    return gpc_cupti_said(gpc_profile_flush(flag & GP_CUPTI_FLUSH_FORCED));
}

uint32_t cuptiActivityFlushAll(uint32_t flag)
{
    return gpc_cupti_said(gpc_profile_flush(flag & GP_CUPTI_FLUSH_FORCED));
}

uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint32_t r = gp_cupti_next(buffer, valid, record);
    return r == GP_CUPTI_MAX_LIMIT_REACHED ? r : gpc_cupti_said(r);
}

uint32_t cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    if (!dropped)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    *dropped = (size_t)gpc_profile_dropped();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    return gpc_cupti_said(gpc_profile_push(kind, id));
}

uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last)
{
    return gpc_cupti_said(gpc_profile_pop(kind, last));
}

uint32_t cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value)
{
    if (!size || !value || attribute >= ATTRIBUTES || *size > sizeof attributes[0])
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    attributes[attribute] = 0;
    memcpy(&attributes[attribute], value, *size);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityGetAttribute(uint32_t attribute, size_t *size, void *value)
{
    if (!size || !value || attribute >= ATTRIBUTES || *size > sizeof attributes[0])
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    memcpy(value, &attributes[attribute], *size);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiGetTimestamp(uint64_t *now)
{
    if (!now)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    *now = gpc_profile_now();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiGetResultString(uint32_t result, const char **text)
{
    static const struct {
        uint32_t result;
        const char *text;
    } known[] = {
        {GP_CUPTI_SUCCESS, "CUPTI_SUCCESS"},
        {GP_CUPTI_INVALID_PARAMETER, "CUPTI_ERROR_INVALID_PARAMETER"},
        {GP_CUPTI_INVALID_DEVICE, "CUPTI_ERROR_INVALID_DEVICE"},
        {GP_CUPTI_OUT_OF_MEMORY, "CUPTI_ERROR_OUT_OF_MEMORY"},
        {GP_CUPTI_NOT_IMPLEMENTED, "CUPTI_ERROR_API_NOT_IMPLEMENTED"},
        {GP_CUPTI_MAX_LIMIT_REACHED, "CUPTI_ERROR_MAX_LIMIT_REACHED"},
        {GP_CUPTI_NOT_INITIALIZED, "CUPTI_ERROR_NOT_INITIALIZED"},
        {GP_CUPTI_QUEUE_EMPTY, "CUPTI_ERROR_QUEUE_EMPTY"},
        {GP_CUPTI_INVALID_KIND, "CUPTI_ERROR_INVALID_KIND"},
        {GP_CUPTI_NOT_SUPPORTED, "CUPTI_ERROR_NOT_SUPPORTED"},
        {GP_CUPTI_MULTIPLE_SUBSCRIBERS, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"},
        {GP_CUPTI_UNKNOWN, "CUPTI_ERROR_UNKNOWN"},
    };
    if (!text)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].result == result) {
            *text = known[i].text;
            return GP_CUPTI_SUCCESS;
        }
    return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
}

uint32_t cuptiGetLastError(void)
{
    uint32_t result = last_error;
    last_error = GP_CUPTI_SUCCESS;
    return result;
}

uint32_t cuptiGetDeviceId(CUcontext context, uint32_t *device)
{
    const struct gpc_activity_table *t = gpc_profile_link();
    if (!device)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    if (!t)
        return gpc_cupti_said(GP_CUPTI_NOT_INITIALIZED);
    CUcontext of = context ? context : t->current();
    CUdevice found = of ? t->device(of) : -1;
    if (found < 0)
        return gpc_cupti_said(GP_CUPTI_INVALID_DEVICE);
    *device = (uint32_t)found;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiSetThreadIdType(uint32_t type)
{
    return gpc_cupti_said(gpc_profile_threads(type));
}

uint32_t cuptiGetThreadIdType(uint32_t *type)
{
    if (!type)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    *type = gpc_profile_thread_type();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiFinalize(void)
{
    gpc_profile_end();
    gpc_callbacks_end();
    return GP_CUPTI_SUCCESS;
}
