/* Who is told of which calls, beside threads that make them: no session, no library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>

#include "callbacks.h"
#include "cupti_export.h"
#include "driver_numbers.h"
#include "profile.h"

#define THREADS 4
#define TIMES 200
#define LAUNCH 307u /* cuLaunchKernel */

struct subscriber;
typedef void callback(void *userdata, uint32_t domain, uint32_t number, const void *data);
uint32_t cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name);
uint32_t cuptiSupportedDomains(size_t *count, const uint32_t **domains);
uint32_t cuptiSubscribe(struct subscriber **handle, callback *f, void *userdata);
uint32_t cuptiUnsubscribe(struct subscriber *handle);
uint32_t cuptiEnableCallback(uint32_t enable, struct subscriber *handle, uint32_t domain,
                             uint32_t cbid);
uint32_t cuptiEnableDomain(uint32_t enable, struct subscriber *handle, uint32_t domain);
uint32_t cuptiGetCallbackState(uint32_t *enabled, struct subscriber *handle, uint32_t domain,
                               uint32_t cbid);

/* --- what stands in for the library ------------------------------------------- */

static const struct gpc_profile_listener *listener;
static bool to_calls;
static CUcontext of_thread; /* every thread's current context */

uint32_t gpc_cupti_said(uint32_t result)
{
    return result;
}

void gpc_profile_listen(const struct gpc_profile_listener *whom, bool calls)
{
    to_calls = calls;
    __atomic_store_n(&listener, whom, __ATOMIC_RELEASE);
}

static CUcontext current(void)
{
    return of_thread;
}

static uint64_t number(CUcontext context)
{
    return context == of_thread ? 3 : 0;
}

static const char *kernel(CUfunction function)
{
    return function ? "increment" : NULL;
}

const struct gpc_activity_table *gpc_profile_link(void)
{
    static const struct gpc_activity_table table = {
        .current = current, .number = number, .kernel = kernel};
    return &table;
}

/* A call of the driver's, as profile.c tells of it. */
static void make(struct gpc_observed *o, CUresult result)
{
    const struct gpc_profile_listener *l = __atomic_load_n(&listener, __ATOMIC_ACQUIRE);
    if (l)
        l->call(o, NULL);
    l = __atomic_load_n(&listener, __ATOMIC_ACQUIRE);
    if (l)
        l->call(o, &result);
}

/* --- the tests ---------------------------------------------------------------- */

static struct {
    unsigned calls, contexts;
    struct gp_cupti_call last;
    CUresult result;
    bool nested;
} seen;

static void told(void *userdata, uint32_t domain, uint32_t id, const void *data)
{
    assert_ptr_equal(userdata, &seen);
    if (domain == GP_CUPTI_DOMAIN_RESOURCE) {
        seen.contexts++;
        return;
    }
    seen.calls++;
    seen.last = *(const struct gp_cupti_call *)data;
    seen.result = seen.last.result ? *(const CUresult *)seen.last.result : CUDA_ERROR_UNKNOWN;
    if (seen.nested)
        make(&(struct gpc_observed){.name = "cuLaunchKernel", .number = id}, CUDA_SUCCESS);
}

static struct subscriber *subscribed(void)
{
    struct subscriber *handle = NULL;
    memset(&seen, 0, sizeof seen);
    assert_int_equal(cuptiSubscribe(&handle, told, &seen), GP_CUPTI_SUCCESS);
    return handle;
}

static void what_is_told(void **state)
{
    static char context;
    const uint64_t arguments[] = {7};
    struct gpc_observed o = {.name = "cuLaunchKernel",
                             .given = arguments,
                             .launched = (CUfunction)&context,
                             .correlation = 41,
                             .number = LAUNCH};
    struct subscriber *handle = subscribed();
    (void)state;
    make(&o, CUDA_SUCCESS);
    assert_int_equal(seen.calls, 0);
    assert_null(listener); /* nobody wants anything, so nothing is observed */
    assert_int_equal(cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_DRIVER, LAUNCH),
                     GP_CUPTI_SUCCESS);
    assert_true(to_calls);
    make(&o, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(seen.calls, 2);
    assert_int_equal(seen.last.site, GP_CUPTI_EXIT);
    assert_int_equal(seen.result, CUDA_ERROR_INVALID_VALUE);
    assert_ptr_equal(seen.last.given, arguments);
    assert_ptr_equal(seen.last.kept, &o.kept);
    assert_string_equal(seen.last.kernel, "increment");
    assert_int_equal(seen.last.correlation, 41);
    assert_null(seen.last.context); /* there is none, so it has no number */
    assert_int_equal(seen.last.context_number, 0);
    of_thread = (CUcontext)&context;
    make(&(struct gpc_observed){.name = "cuLaunchKernel", .number = LAUNCH}, CUDA_SUCCESS);
    assert_ptr_equal(seen.last.context, &context);
    assert_int_equal(seen.last.context_number, 3);
    assert_null(seen.last.kernel);
    of_thread = NULL;
    make(&(struct gpc_observed){.name = "cuMemAlloc_v2", .number = LAUNCH - 1}, CUDA_SUCCESS);
    make(&(struct gpc_observed){.name = "one without a number"}, CUDA_SUCCESS);
    assert_int_equal(seen.calls, 4);
    seen.nested = true;
    make(&o, CUDA_SUCCESS);
    assert_int_equal(seen.calls, 6); /* of its own calls it is not told */
    assert_int_equal(cuptiUnsubscribe(handle), GP_CUPTI_SUCCESS);
    assert_null(listener);
}

static void contexts_are_told_alone(void **state)
{
    struct subscriber *handle = subscribed();
    (void)state;
    assert_int_equal(
        cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_RESOURCE, GP_CUPTI_CONTEXT_ENDING),
        GP_CUPTI_SUCCESS);
    assert_false(to_calls); /* they cost nothing */
    listener->context(NULL, true);
    assert_int_equal(seen.contexts, 0);
    listener->context(NULL, false);
    assert_int_equal(seen.contexts, 1);
    make(&(struct gpc_observed){.name = "cuLaunchKernel", .number = LAUNCH}, CUDA_SUCCESS);
    assert_int_equal(seen.calls, 0);
    assert_int_equal(cuptiEnableDomain(0, handle, GP_CUPTI_DOMAIN_RESOURCE), GP_CUPTI_SUCCESS);
    assert_null(listener);
    assert_int_equal(cuptiUnsubscribe(handle), GP_CUPTI_SUCCESS);
}

static void what_is_refused(void **state)
{
    const uint32_t driver = GP_CUPTI_DOMAIN_DRIVER, resource = GP_CUPTI_DOMAIN_RESOURCE;
    struct subscriber *handle = subscribed(), *other = NULL;
    const char *name = NULL;
    const uint32_t *domains;
    uint32_t on = 1;
    size_t count;
    (void)state;
    assert_int_equal(cuptiSubscribe(NULL, told, NULL), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiSubscribe(&other, NULL, NULL), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiSubscribe(&other, told, NULL), GP_CUPTI_MULTIPLE_SUBSCRIBERS);
    for (uint32_t domain = 0; domain < 8; domain++)
        if (domain != driver && domain != resource) {
            assert_int_equal(cuptiEnableDomain(1, handle, domain), GP_CUPTI_NOT_SUPPORTED);
            assert_int_equal(cuptiEnableCallback(1, handle, domain, 1), GP_CUPTI_NOT_SUPPORTED);
            assert_int_equal(cuptiEnableCallback(0, handle, domain, 1), GP_CUPTI_SUCCESS);
        }
    assert_int_equal(cuptiEnableDomain(1, handle, resource), GP_CUPTI_NOT_SUPPORTED);
    assert_int_equal(cuptiEnableCallback(1, handle, resource, 3), GP_CUPTI_NOT_SUPPORTED);
    const uint32_t none[] = {0, gpc_driver_number_last + 1, GPC_CUPTI_NUMBERS, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(cuptiEnableCallback(1, handle, driver, none[i]),
                         GP_CUPTI_INVALID_PARAMETER);
        assert_int_equal(cuptiGetCallbackState(&on, handle, driver, none[i]),
                         GP_CUPTI_INVALID_PARAMETER);
        assert_int_equal(cuptiGetCallbackName(driver, none[i], &name), GP_CUPTI_INVALID_PARAMETER);
    }
    assert_int_equal(cuptiGetCallbackState(NULL, handle, driver, 1), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiGetCallbackState(&on, handle, driver, LAUNCH), GP_CUPTI_SUCCESS);
    assert_int_equal(on, 0);
    assert_int_equal(cuptiGetCallbackName(2, LAUNCH, &name), GP_CUPTI_NOT_SUPPORTED);
    assert_int_equal(cuptiGetCallbackName(driver, LAUNCH, NULL), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiGetCallbackName(driver, LAUNCH, &name), GP_CUPTI_SUCCESS);
    assert_string_equal(name, "cuLaunchKernel");
    assert_int_equal(cuptiSupportedDomains(NULL, &domains), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiSupportedDomains(&count, NULL), GP_CUPTI_INVALID_PARAMETER);
    assert_null(listener);
    assert_int_equal(cuptiUnsubscribe(handle), GP_CUPTI_SUCCESS);
    assert_int_equal(cuptiUnsubscribe(handle), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiEnableDomain(1, handle, driver), GP_CUPTI_INVALID_PARAMETER);
    assert_int_equal(cuptiGetCallbackState(&on, handle, driver, 1), GP_CUPTI_INVALID_PARAMETER);
}

/* On each thread: what began and what has returned. */
static __thread unsigned began, returned;

static void count(void *userdata, uint32_t domain, uint32_t id, const void *data)
{
    const struct gp_cupti_call *c = data;
    (void)userdata, (void)domain, (void)id;
    if (c->site == GP_CUPTI_EXIT) {
        returned++;
    } else {
        *c->kept = c->correlation;
        began++;
    }
}

/* Returns what is wrong, NULL: nothing. */
static void *call_until(void *arg)
{
    uint32_t made = 0;
    while (!__atomic_load_n((const bool *)arg, __ATOMIC_ACQUIRE)) {
        struct gpc_observed o = {.name = "cuLaunchKernel", .number = LAUNCH, .correlation = ++made};
        unsigned before = began;
        make(&o, CUDA_SUCCESS);
        if (began > before && o.kept != made)
            return "what one call kept came to another";
    }
    return began <= made && returned <= made ? NULL : "of one call it was told twice";
}

/* While threads make calls a tool comes, changes its mind and goes. */
static void beside_threads(void **state)
{
    pthread_t threads[THREADS];
    struct subscriber *handle = NULL;
    void *wrong = NULL;
    bool stop = false;
    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_until, &stop), 0);
    for (int i = 0; i < TIMES; i++) {
        assert_int_equal(cuptiSubscribe(&handle, count, NULL), GP_CUPTI_SUCCESS);
        assert_int_equal(cuptiEnableDomain(1, handle, GP_CUPTI_DOMAIN_DRIVER), GP_CUPTI_SUCCESS);
        assert_int_equal(cuptiEnableCallback(0, handle, GP_CUPTI_DOMAIN_DRIVER, LAUNCH),
                         GP_CUPTI_SUCCESS);
        assert_int_equal(cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_DRIVER, LAUNCH),
                         GP_CUPTI_SUCCESS);
        assert_int_equal(cuptiUnsubscribe(handle), GP_CUPTI_SUCCESS);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told),
        cmocka_unit_test(contexts_are_told_alone),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(beside_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
