#include "callbacks.h"

#include <pthread.h>
#include <stdlib.h>

#include "cupti_export.h"
#include "driver_numbers.h"
#include "profile.h"

typedef void callback(void *userdata, uint32_t domain, uint32_t number, const void *data);

/* One at a time, as with CUPTI. Calls read this on their threads while it is changed: who has
 * unsubscribed may still be told of a call that has begun or ended just then. */
static struct subscriber {
    bool subscribed;
    callback *callback;
    void *userdata;
    bool created, ending;
    bool of[GPC_CUPTI_NUMBERS]; /* the driver's functions */
} subscriber;

static __thread bool told; /* this thread runs a callback of a call */

#pragma GCC visibility push(default)
uint32_t cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name);
uint32_t cuptiSupportedDomains(size_t *count, const uint32_t **domains);
uint32_t cuptiSubscribe(struct subscriber **handle, callback *f, void *userdata);
uint32_t cuptiUnsubscribe(struct subscriber *handle);
uint32_t cuptiEnableCallback(uint32_t enable, struct subscriber *handle, uint32_t domain,
                             uint32_t cbid);
uint32_t cuptiEnableDomain(uint32_t enable, struct subscriber *handle, uint32_t domain);
uint32_t cuptiGetCallbackState(uint32_t *enabled, struct subscriber *handle, uint32_t domain,
                               uint32_t cbid);
#pragma GCC visibility pop

static const char *name_of(uint32_t number)
{
    for (size_t i = 0; i < gpc_driver_number_count; i++)
        if (gpc_driver_numbers[i].number == number)
            return gpc_driver_numbers[i].name;
    return NULL;
}

uint32_t cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name)
{
    const char *found = domain == GP_CUPTI_DOMAIN_DRIVER ? name_of(cbid) : NULL;
    if (!name || cbid == 0 || (domain == GP_CUPTI_DOMAIN_DRIVER && !found))
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    if (!found)
        return gpc_cupti_said(GP_CUPTI_NOT_SUPPORTED);
    *name = found;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiSupportedDomains(size_t *count, const uint32_t **domains)
{
    static const uint32_t known[] = {GP_CUPTI_DOMAIN_DRIVER, GP_CUPTI_DOMAIN_RESOURCE};
    if (!count || !domains)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    *count = sizeof known / sizeof known[0];
    *domains = known;
    return GP_CUPTI_SUCCESS;
}

/* --- what is told ------------------------------------------------------------ */

static bool is_set(const bool *wanted)
{
    return __atomic_load_n(wanted, __ATOMIC_ACQUIRE);
}

static void tell(uint32_t domain, uint32_t number, const void *data)
{
    callback *f = __atomic_load_n(&subscriber.callback, __ATOMIC_RELAXED);
    f(__atomic_load_n(&subscriber.userdata, __ATOMIC_RELAXED), domain, number, data);
}

static void context(CUcontext ctx, bool made)
{
    const struct gp_cupti_of_resource r = {.context = ctx};
    if (is_set(made ? &subscriber.created : &subscriber.ending))
        tell(GP_CUPTI_DOMAIN_RESOURCE, made ? GP_CUPTI_CONTEXT_CREATED : GP_CUPTI_CONTEXT_ENDING,
             &r);
}

/* Of calls that a callback makes it is not told: one that guards itself against them misses
 * nothing, one that does not would never return. */
static void call(struct gpc_observed *o, const CUresult *result)
{
    const struct gpc_activity_table *t = gpc_profile_link();
    if (told || !o->number || !is_set(&subscriber.of[o->number]))
        return;
    CUresult returned = result ? *result : CUDA_SUCCESS;
    CUcontext current = t->current();
    const struct gp_cupti_call c = {.site = result ? GP_CUPTI_EXIT : GP_CUPTI_ENTER,
                                    .name = o->name,
                                    .given = o->given,
                                    .result = result ? &returned : NULL,
                                    .kernel = o->launched ? t->kernel(o->launched) : NULL,
                                    .context = current,
                                    .context_number = current ? (uint32_t)t->number(current) : 0,
                                    .kept = &o->kept,
                                    .correlation = o->correlation};
    told = true;
    tell(GP_CUPTI_DOMAIN_DRIVER, o->number, &c);
    told = false;
}

static const struct gpc_profile_listener listener = {.context = context, .call = call};

/* --- what is asked ----------------------------------------------------------- */

static void listen(void)
{
    bool calls = false;
    for (size_t i = 0; i < GPC_CUPTI_NUMBERS; i++)
        calls = calls || subscriber.of[i];
    bool any = calls || subscriber.created || subscriber.ending;
    gpc_profile_listen(any ? &listener : NULL, calls);
}

/* What says whether this is wanted; NULL: there is no such thing. */
static bool *wanted(uint32_t domain, uint32_t number)
{
    if (domain == GP_CUPTI_DOMAIN_DRIVER && number > 0 && number <= gpc_driver_number_last)
        return &subscriber.of[number];
    if (domain == GP_CUPTI_DOMAIN_RESOURCE && number == GP_CUPTI_CONTEXT_CREATED)
        return &subscriber.created;
    if (domain == GP_CUPTI_DOMAIN_RESOURCE && number == GP_CUPTI_CONTEXT_ENDING)
        return &subscriber.ending;
    return NULL;
}

static void set(bool *one, bool on)
{
    __atomic_store_n(one, on, __ATOMIC_RELEASE);
}

static void set_calls(bool on)
{
    for (uint32_t i = 1; i <= gpc_driver_number_last; i++)
        set(&subscriber.of[i], on);
}

static bool is_subscriber(const struct subscriber *handle)
{
    return handle == &subscriber && subscriber.subscribed;
}

/* The runtime ends its contexts when the process does, and whoever subscribed is gone by then. */
static void at_exit(void)
{
    gpc_profile_listen(NULL, false);
}

static void watch_exit(void)
{
    (void)atexit(at_exit); /* behind whoever subscribes, so it runs before they go */
}

void gpc_callbacks_end(void)
{
    gpc_profile_listen(NULL, false);
    set(&subscriber.created, false);
    set(&subscriber.ending, false);
    set_calls(false);
    subscriber.subscribed = false;
}

uint32_t cuptiSubscribe(struct subscriber **handle, callback *f, void *userdata)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!handle || !f)
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    if (!gpc_profile_link())
        return gpc_cupti_said(GP_CUPTI_NOT_INITIALIZED);
    if (subscriber.subscribed)
        return gpc_cupti_said(GP_CUPTI_MULTIPLE_SUBSCRIBERS);
    pthread_once(&once, watch_exit);
    __atomic_store_n(&subscriber.callback, f, __ATOMIC_RELAXED);
    __atomic_store_n(&subscriber.userdata, userdata, __ATOMIC_RELAXED);
    subscriber.subscribed = true;
    *handle = &subscriber;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiUnsubscribe(struct subscriber *handle)
{
    if (!is_subscriber(handle))
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    gpc_callbacks_end();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiEnableCallback(uint32_t enable, struct subscriber *handle, uint32_t domain,
                             uint32_t cbid)
{
    bool *one = wanted(domain, cbid);
    if (!is_subscriber(handle) || (domain == GP_CUPTI_DOMAIN_DRIVER && !one))
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    if (!one)
        return enable ? gpc_cupti_said(GP_CUPTI_NOT_SUPPORTED) : GP_CUPTI_SUCCESS;
    set(one, enable);
    listen();
    return GP_CUPTI_SUCCESS;
}

/* Of other domains not all is told, so that none of them can be had whole. */
uint32_t cuptiEnableDomain(uint32_t enable, struct subscriber *handle, uint32_t domain)
{
    if (!is_subscriber(handle))
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    if (domain != GP_CUPTI_DOMAIN_DRIVER && enable)
        return gpc_cupti_said(GP_CUPTI_NOT_SUPPORTED);
    if (domain == GP_CUPTI_DOMAIN_DRIVER)
        set_calls(enable);
    if (domain == GP_CUPTI_DOMAIN_RESOURCE) {
        set(&subscriber.created, false);
        set(&subscriber.ending, false);
    }
    listen();
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiGetCallbackState(uint32_t *enabled, struct subscriber *handle, uint32_t domain,
                               uint32_t cbid)
{
    const bool *one = wanted(domain, cbid);
    if (!enabled || !is_subscriber(handle) || (domain == GP_CUPTI_DOMAIN_DRIVER && !one))
        return gpc_cupti_said(GP_CUPTI_INVALID_PARAMETER);
    *enabled = one && *one;
    return GP_CUPTI_SUCCESS;
}
