/*
 * Callbacks of calls, as tools have them from CUPTI: where a call begins and where it has returned,
 * with its arguments, its kernel and its number. The argument is CUPTI's library.
 */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../proto/wire/cupti.h"

#define BUFFER ((size_t)64 << 10)
#define MOST 64
#define THREADS 4
#define TIMES 200
#define BYTES ((size_t)4096)

struct subscriber;
typedef void callback(void *userdata, uint32_t domain, uint32_t cbid, const void *data);
#define FUNCTIONS(X)                                                                               \
    X(cuptiSupportedDomains, (size_t *count, const uint32_t **domains))                            \
    X(cuptiGetCallbackName, (uint32_t domain, uint32_t cbid, const char **name))                   \
    X(cuptiSetThreadIdType, (uint32_t type))                                                       \
    X(cuptiGetThreadIdType, (uint32_t *type))                                                      \
    X(cuptiGetDeviceId, (CUcontext context, uint32_t *device))                                     \
    X(cuptiSubscribe, (struct subscriber * *handle, callback * f, void *userdata))                 \
    X(cuptiUnsubscribe, (struct subscriber * handle))                                              \
    X(cuptiEnableDomain, (uint32_t enable, struct subscriber *handle, uint32_t domain))            \
    X(cuptiEnableCallback,                                                                         \
      (uint32_t enable, struct subscriber *handle, uint32_t domain, uint32_t cbid))                \
    X(cuptiGetCallbackState,                                                                       \
      (uint32_t *enabled, struct subscriber *handle, uint32_t domain, uint32_t cbid))
static struct {
#define X(name, parameters) uint32_t(*name) parameters;
    GP_CUPTI_FUNCTIONS(X) FUNCTIONS(X)
#undef X
} p;

#define GIVES(expected, call)                                                                      \
    do {                                                                                           \
        uint32_t cupti_result = (call);                                                            \
        EXPECT(cupti_result == (expected), "%s gave %u, expected %u", #call, cupti_result,         \
               (uint32_t)(expected));                                                              \
    } while (0)

/* What callbacks of the main thread have been told, in order. */
struct event {
    char name[48], kernel[48];
    uint32_t site, correlation, number;
    uint64_t kept;
    CUresult result;
    CUcontext context;
    size_t bytes;         /* cuMemAlloc's */
    unsigned grid, block; /* cuLaunchKernel's */
    uint32_t device;
};
static struct event events[MOST];
static size_t count;
static CUdeviceptr scratch; /* a callback's own */
static int turns[2];        /* of all threads, where calls begin and have returned */
static pthread_t main_thread;

static void open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    REQUIRE(library, "%s", dlerror());
#define X(name, parameters)                                                                        \
    p.name = (uint32_t(*) parameters)dlsym(library, #name);                                        \
    REQUIRE(p.name, "it has no %s", #name);
    GP_CUPTI_FUNCTIONS(X) FUNCTIONS(X)
#undef X
}

static void look_at_arguments(struct event *e, const void *given)
{
    const struct {
        CUdeviceptr *to;
        size_t bytes;
    } *alloc = given;
    const struct {
        CUfunction f;
        unsigned grid[3], block[3], shared;
        CUstream stream;
        void **parameters, **extra;
    } *launch = given;
    if (strcmp(e->name, "cuMemAlloc_v2") == 0)
        e->bytes = alloc->bytes;
    if (strcmp(e->name, "cuLaunchKernel") == 0) {
        e->grid = launch->grid[0];
        e->block = launch->block[0];
        EXPECT(launch->parameters && !launch->extra && !launch->stream, "a launch's other words");
    }
}

static void told(void *userdata, uint32_t domain, uint32_t cbid, const void *data)
{
    const struct gp_cupti_call *c = data;
    const char *name = NULL;
    EXPECT(userdata == &count && domain == GP_CUPTI_DOMAIN_DRIVER, "domain %u", domain);
    __atomic_add_fetch(&turns[c->site == GP_CUPTI_EXIT], 1, __ATOMIC_RELAXED);
    if (c->site == GP_CUPTI_ENTER)
        *c->kept = (uint64_t)(uintptr_t)pthread_self() + c->correlation;
    else
        EXPECT(*c->kept == (uint64_t)(uintptr_t)pthread_self() + c->correlation, "%s kept nothing",
               c->name);
    if (!pthread_equal(pthread_self(), main_thread) || count == MOST)
        return;
    struct event *e = &events[count++];
    *e = (struct event){.site = c->site,
                        .correlation = c->correlation,
                        .number = c->context_number,
                        .context = c->context,
                        .result = c->site == GP_CUPTI_EXIT ? *(CUresult *)c->result : 0};
    snprintf(e->name, sizeof e->name, "%s", c->name);
    snprintf(e->kernel, sizeof e->kernel, "%s", c->kernel ? c->kernel : "");
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetCallbackName(domain, cbid, &name));
    EXPECT(name && strcmp(name, c->name) == 0, "%u is %s and %s", cbid, c->name, name);
    if (c->context)
        GIVES(GP_CUPTI_SUCCESS, p.cuptiGetDeviceId(c->context, &e->device));
    look_at_arguments(e, c->given);
    /* work of its own, which is not the launch's */
    if (scratch && c->site == GP_CUPTI_ENTER && strcmp(c->name, "cuLaunchKernel") == 0)
        CU(cuMemsetD8(scratch, 1, BYTES));
}

/* The event at `at` of a call by this name. */
static const struct event *find(const char *name, uint32_t site)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(events[i].name, name) == 0 && events[i].site == site)
            return &events[i];
    REQUIRE(false, "no callback of %s, site %u", name, site);
    return NULL;
}

static uint8_t *full;
static size_t valid;

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = malloc(BUFFER);
    *size = BUFFER;
    *records = 0;
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                      size_t bytes)
{
    (void)context, (void)stream, (void)size;
    EXPECT(!full, "more than a buffer of records");
    full = buffer;
    valid = bytes;
}

/* The kernel, the call that launched it and the callbacks of that have one number; the set that
 * the callback asked for has another. */
static void look_at_records(uint32_t correlation)
{
    unsigned kernels = 0, calls = 0, sets = 0;
    void *record = NULL;
    while (full && p.cuptiActivityGetNextRecord(full, valid, &record) == GP_CUPTI_SUCCESS) {
        const struct gp_cupti_kernel *k = record;
        const struct gp_cupti_api *a = record;
        const struct gp_cupti_memset *s = record;
        kernels += k->kind == GP_CUPTI_CONCURRENT_KERNEL && k->correlation == correlation;
        calls += a->kind == GP_CUPTI_DRIVER && a->correlation == correlation && a->cbid == 307 &&
                 a->process == (uint32_t)getpid() && a->thread == (uint32_t)syscall(SYS_gettid);
        sets += s->kind == GP_CUPTI_MEMSET && s->correlation && s->correlation != correlation;
    }
    free(full);
    full = NULL;
    EXPECT(kernels == 1 && calls == 1 && sets == 1, "%u kernels, %u calls, %u sets", kernels, calls,
           sets);
}

static void calls(struct subscriber *handle, CUfunction function)
{
    static const uint32_t kinds[] = {GP_CUPTI_CONCURRENT_KERNEL, GP_CUPTI_MEMSET, GP_CUPTI_DRIVER};
    uint32_t type = GP_CUPTI_THREAD_DEFAULT;
    CUdeviceptr device;
    int n = 64;
    void *parameters[] = {&device, &n};

    GIVES(GP_CUPTI_NOT_SUPPORTED, p.cuptiSetThreadIdType(2));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiSetThreadIdType(GP_CUPTI_THREAD_SYSTEM));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetThreadIdType(&type));
    EXPECT(type == GP_CUPTI_THREAD_SYSTEM, "threads of type %u", type);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityRegisterCallbacks(requested, completed));
    CU(cuMemAlloc(&scratch, BYTES));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiEnableDomain(1, handle, GP_CUPTI_DOMAIN_DRIVER));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityEnable(kinds[i]));
    CU(cuMemAlloc(&device, BYTES));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocHost(NULL, BYTES));
    CU(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CU(cuCtxSynchronize());
    GIVES(GP_CUPTI_SUCCESS, p.cuptiEnableDomain(0, handle, GP_CUPTI_DOMAIN_DRIVER));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityDisable(kinds[i]));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityFlushAll(0));
    const struct event *enter = find("cuLaunchKernel", GP_CUPTI_ENTER),
                       *leave = find("cuLaunchKernel", GP_CUPTI_EXIT),
                       *alloc = find("cuMemAlloc_v2", GP_CUPTI_EXIT);
    EXPECT(enter->correlation && enter->correlation == leave->correlation, "two numbers, %u and %u",
           enter->correlation, leave->correlation);
    EXPECT(strcmp(enter->kernel, "increment") == 0, "the kernel is %s", enter->kernel);
    EXPECT(enter->grid == 2 && enter->block == 32, "%u times %u", enter->grid, enter->block);
    EXPECT(enter->context == driver_context && enter->number, "context %p, number %u",
           (void *)enter->context, enter->number);
    EXPECT(enter->device == (uint32_t)driver_device, "device %u", enter->device);
    EXPECT(alloc->bytes == BYTES && alloc->result == CUDA_SUCCESS && !alloc->kernel[0],
           "an allocation of %zu", alloc->bytes);
    EXPECT(find("cuMemAllocHost_v2", GP_CUPTI_EXIT)->result == CUDA_ERROR_INVALID_VALUE,
           "a call that fails");
    find("cuCtxSynchronize", GP_CUPTI_ENTER);
    look_at_records(enter->correlation);
    CU(cuMemFree(scratch));
    CU(cuMemFree(device));
    scratch = 0;
}

/* A callback's own call: CUPTI says nothing of whether it is told of that, we do not tell. */
static void nested(void)
{
    size_t inner = 0;
    for (size_t i = 0; i < count; i++)
        inner += strcmp(events[i].name, "cuMemsetD8_v2") == 0;
    SAY("callbacks of a callback's own call: %zu", inner);
    EXPECT(driver_is_native() || inner == 0, "%zu callbacks of a callback's call", inner);
}

static void one_function(struct subscriber *handle)
{
    uint32_t on = 1;
    int version;
    count = 0;
    GIVES(GP_CUPTI_SUCCESS,
          p.cuptiGetCallbackState(&on, handle, GP_CUPTI_DOMAIN_DRIVER, 2 /* cuDriverGetVersion */));
    EXPECT(!on, "it is told of what was switched off");
    GIVES(GP_CUPTI_SUCCESS, p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_DRIVER, 2));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetCallbackState(&on, handle, GP_CUPTI_DOMAIN_DRIVER, 2));
    EXPECT(on, "it is not told of what was switched on");
    CU(cuDriverGetVersion(&version));
    CU(cuCtxSynchronize());
    EXPECT(count == 2, "%zu callbacks of one call", count);
    GIVES(GP_CUPTI_INVALID_PARAMETER,
          p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_DRIVER, 100000));
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_DRIVER, 0));
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiEnableCallback(1, NULL, GP_CUPTI_DOMAIN_DRIVER, 2));
    GIVES(GP_CUPTI_INVALID_PARAMETER,
          p.cuptiGetCallbackState(NULL, handle, GP_CUPTI_DOMAIN_DRIVER, 2));
    if (!driver_is_native())
        GIVES(GP_CUPTI_NOT_SUPPORTED, p.cuptiEnableDomain(1, handle, 2 /* the runtime's */));
}

/* Of calls that nobody looks at nothing is kept, not even a number: a profiler that is told of
 * contexts, as PyTorch's is as long as the process lives, makes no call dearer. NVIDIA's may count
 * them. */
static void nothing_in_between(struct subscriber *handle)
{
    int version;
    count = 0;
    GIVES(GP_CUPTI_SUCCESS,
          p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_RESOURCE, GP_CUPTI_CONTEXT_CREATED));
    for (uint32_t on = 1; on < 4; on++) {
        GIVES(GP_CUPTI_SUCCESS, p.cuptiEnableCallback(on & 1, handle, GP_CUPTI_DOMAIN_DRIVER, 2));
        for (int i = 0; i < (on & 1 ? 1 : TIMES); i++)
            CU(cuDriverGetVersion(&version));
    }
    EXPECT(count == 4, "%zu callbacks of two calls", count);
    EXPECT(driver_is_native() || events[2].correlation == events[0].correlation + 1,
           "%u numbers for calls that nobody looks at",
           events[2].correlation - events[0].correlation - 1);
}

static void *many(void *arg)
{
    CU(cuCtxSetCurrent(driver_context));
    for (int i = 0; i < TIMES; i++)
        CU(cuDriverGetVersion(arg));
    return NULL;
}

/* Each is told on its own thread, while this one changes its mind. */
static void threads(struct subscriber *handle)
{
    pthread_t list[THREADS];
    int versions[THREADS];
    turns[0] = turns[1] = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&list[i], NULL, many, &versions[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(list[i], NULL);
    EXPECT(turns[0] == THREADS * TIMES && turns[1] == THREADS * TIMES, "%d and %d callbacks",
           turns[0], turns[1]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&list[i], NULL, many, &versions[i]);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiUnsubscribe(handle));
    for (int i = 0; i < THREADS; i++)
        pthread_join(list[i], NULL);
    turns[0] = 0;
    many(versions);
    EXPECT(turns[0] == 0, "%d callbacks of nobody", turns[0]);
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiEnableDomain(1, handle, GP_CUPTI_DOMAIN_DRIVER));
}

int main(int argc, char **argv)
{
    struct subscriber *handle = NULL;
    const uint32_t *domains = NULL;
    size_t known = 0;
    uint32_t device;
    CUmodule module;

    REQUIRE(argc == 2, "usage: driver_cupti_calls LIBCUPTI");
    open_library(argv[1]);
    main_thread = pthread_self();
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiGetDeviceId(NULL, NULL));
    driver_start();
    GIVES(GP_CUPTI_SUCCESS, p.cuptiSupportedDomains(&known, &domains));
    EXPECT(known > 0 && domains[0] == GP_CUPTI_DOMAIN_DRIVER, "%zu domains", known);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetDeviceId(NULL, &device));
    EXPECT(device == (uint32_t)driver_device, "device %u", device);
    CU(cuModuleLoadData(&module, kernels_ptx));
    CUfunction function = driver_function(module, "increment");
    GIVES(GP_CUPTI_SUCCESS, p.cuptiSubscribe(&handle, told, &count));
    calls(handle, function);
    nested();
    one_function(handle);
    nothing_in_between(handle);
    threads(handle);
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_cupti_calls");
}
