/* The functions of CUPTI that are not refused: records of activity, and callbacks of contexts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cupti_export.h"
#include "driver_numbers.h"
#include "profile.h"

#define DOMAIN_DRIVER 1u
#define DOMAIN_RESOURCE 3u
#define CONTEXT_CREATED 1u
#define CONTEXT_ENDING 2u
#define ATTRIBUTES 16u

/* What a callback is told of a resource. */
struct resource {
    CUcontext context;
    void *handle, *descriptor;
};

static struct subscriber {
    gpc_cupti_callback *callback;
    void *userdata;
    bool created, ending;
} subscriber;
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
uint32_t cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name);
uint32_t cuptiSubscribe(struct subscriber **handle, gpc_cupti_callback *callback, void *userdata);
uint32_t cuptiUnsubscribe(struct subscriber *handle);
uint32_t cuptiEnableCallback(uint32_t enable, struct subscriber *handle, uint32_t domain,
                             uint32_t cbid);
uint32_t cuptiFinalize(void);
#pragma GCC visibility pop

static __thread uint32_t last_error;

static uint32_t said(uint32_t result)
{
    if (result != GP_CUPTI_SUCCESS)
        last_error = result;
    return result;
}

uint32_t cuptiActivityEnable(uint32_t kind)
{
    return said(gpc_profile_enable(kind, true));
}

uint32_t cuptiActivityDisable(uint32_t kind)
{
    return said(gpc_profile_enable(kind, false));
}

uint32_t cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable)
{
    return said(gpc_profile_skip(cbid, !enable));
}

uint32_t cuptiActivityRegisterCallbacks(gp_cupti_requested *request, gp_cupti_completed *complete)
{
    return said(gpc_profile_buffers(request, complete));
}

uint32_t cuptiActivityRegisterTimestampCallback(gpc_cupti_clock *clock)
{
    return said(gpc_profile_clock(clock));
}

uint32_t cuptiActivityFlush(CUcontext context, uint32_t stream, uint32_t flag)
{
    (void)context;
    (void)stream;
    return said(gpc_profile_flush(flag & GP_CUPTI_FLUSH_FORCED));
}

uint32_t cuptiActivityFlushAll(uint32_t flag)
{
    return said(gpc_profile_flush(flag & GP_CUPTI_FLUSH_FORCED));
}

uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint32_t r = gp_cupti_next(buffer, valid, record);
    return r == GP_CUPTI_MAX_LIMIT_REACHED ? r : said(r);
}

uint32_t cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    if (!dropped)
        return said(GP_CUPTI_INVALID_PARAMETER);
    *dropped = (size_t)gpc_profile_dropped();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    return said(gpc_profile_push(kind, id));
}

uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last)
{
    return said(gpc_profile_pop(kind, last));
}

uint32_t cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value)
{
    if (!size || !value || attribute >= ATTRIBUTES || *size > sizeof attributes[0])
        return said(GP_CUPTI_INVALID_PARAMETER);
    attributes[attribute] = 0;
    memcpy(&attributes[attribute], value, *size);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityGetAttribute(uint32_t attribute, size_t *size, void *value)
{
    if (!size || !value || attribute >= ATTRIBUTES || *size > sizeof attributes[0])
        return said(GP_CUPTI_INVALID_PARAMETER);
    memcpy(value, &attributes[attribute], *size);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiGetTimestamp(uint64_t *now)
{
    if (!now)
        return said(GP_CUPTI_INVALID_PARAMETER);
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
        return said(GP_CUPTI_INVALID_PARAMETER);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].result == result) {
            *text = known[i].text;
            return GP_CUPTI_SUCCESS;
        }
    return said(GP_CUPTI_INVALID_PARAMETER);
}

uint32_t cuptiGetLastError(void)
{
    uint32_t result = last_error;
    last_error = GP_CUPTI_SUCCESS;
    return result;
}

uint32_t cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name)
{
    if (!name || cbid == 0)
        return said(GP_CUPTI_INVALID_PARAMETER);
    if (domain != DOMAIN_DRIVER)
        return said(GP_CUPTI_NOT_SUPPORTED);
    for (size_t i = 0; i < gpc_driver_number_count; i++)
        if (gpc_driver_numbers[i].number == cbid) {
            *name = gpc_driver_numbers[i].name;
            return GP_CUPTI_SUCCESS;
        }
    return said(GP_CUPTI_INVALID_PARAMETER);
}

/* --- callbacks --------------------------------------------------------------- */

static void context_told(CUcontext context, bool made)
{
    const struct resource r = {.context = context};
    if (subscriber.callback && (made ? subscriber.created : subscriber.ending))
        subscriber.callback(subscriber.userdata, DOMAIN_RESOURCE,
                            made ? CONTEXT_CREATED : CONTEXT_ENDING, &r);
}

/* The runtime ends its contexts when the process does, and whoever subscribed is gone by then. */
static void at_exit(void)
{
    gpc_profile_contexts(NULL);
}

static void watch_exit(void)
{
    (void)atexit(at_exit); /* behind whoever subscribes, so it runs before they go */
}

uint32_t cuptiSubscribe(struct subscriber **handle, gpc_cupti_callback *callback, void *userdata)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!handle || !callback)
        return said(GP_CUPTI_INVALID_PARAMETER);
    if (!gpc_profile_link())
        return said(GP_CUPTI_NOT_INITIALIZED);
    if (subscriber.callback)
        return said(GP_CUPTI_MULTIPLE_SUBSCRIBERS);
    pthread_once(&once, watch_exit);
    subscriber = (struct subscriber){.callback = callback, .userdata = userdata};
    *handle = &subscriber;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiUnsubscribe(struct subscriber *handle)
{
    if (handle != &subscriber || !subscriber.callback)
        return said(GP_CUPTI_INVALID_PARAMETER);
    gpc_profile_contexts(NULL);
    subscriber = (struct subscriber){0};
    return GP_CUPTI_SUCCESS;
}

/* Of contexts alone: what calls are given is not shown to callbacks. */
uint32_t cuptiEnableCallback(uint32_t enable, struct subscriber *handle, uint32_t domain,
                             uint32_t cbid)
{
    if (handle != &subscriber || !subscriber.callback)
        return said(GP_CUPTI_INVALID_PARAMETER);
    if (domain != DOMAIN_RESOURCE || (cbid != CONTEXT_CREATED && cbid != CONTEXT_ENDING))
        return enable ? said(GP_CUPTI_NOT_SUPPORTED) : GP_CUPTI_SUCCESS;
    if (cbid == CONTEXT_CREATED)
        subscriber.created = enable;
    else
        subscriber.ending = enable;
    gpc_profile_contexts(subscriber.created || subscriber.ending ? context_told : NULL);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiFinalize(void)
{
    gpc_profile_end();
    subscriber = (struct subscriber){0};
    return GP_CUPTI_SUCCESS;
}
