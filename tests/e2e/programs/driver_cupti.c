/*
 * A profiler as PyTorch's is: records of kernels, copies and sets, of the calls that asked for
 * them, and of what the program was doing then. The argument is CUPTI's library.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../proto/wire/cupti.h"

#define BUFFER ((size_t)256 << 10)
#define LAUNCHES 5
#define LARGE ((size_t)8 << 20) /* more than one message carries */
#define RUNTIME 2u              /* whose calls are not told of */
#define STEP 4711u              /* what the program says that it does */

struct subscriber;
typedef void callback(void *userdata, uint32_t domain, uint32_t cbid, const void *data);
#define FUNCTIONS(X)                                                                               \
    X(cuptiActivityEnableDriverApi, (uint32_t cbid, uint8_t enable))                               \
    X(cuptiActivityRegisterTimestampCallback, (uint64_t (*clock)(void)))                           \
    X(cuptiGetVersion, (uint32_t *version))                                                        \
    X(cuptiGetCallbackName, (uint32_t domain, uint32_t cbid, const char **name))                   \
    X(cuptiGetResultString, (uint32_t result, const char **text))                                  \
    X(cuptiSubscribe, (struct subscriber * *handle, callback * f, void *userdata))                 \
    X(cuptiUnsubscribe, (struct subscriber * handle))                                              \
    X(cuptiEnableCallback,                                                                         \
      (uint32_t enable, struct subscriber *handle, uint32_t domain, uint32_t cbid))                \
    X(cuptiFinalize, (void))                                                                       \
    X(cuptiProfilerInitialize, (void *params))
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

static uint8_t *full[64];
static size_t valid[64], asked, fulls, contexts, dropped_buffers;

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    asked++;
    *buffer = malloc(BUFFER);
    *size = BUFFER;
    *records = 0;
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                      size_t bytes)
{
    (void)context, (void)stream, (void)size;
    if (fulls < 64) {
        full[fulls] = buffer;
        valid[fulls++] = bytes;
    } else {
        dropped_buffers++;
        free(buffer);
    }
}

static void told(void *userdata, uint32_t domain, uint32_t cbid, const void *data)
{
    CUcontext context = *(const CUcontext *)data;
    EXPECT(userdata == &contexts && domain == GP_CUPTI_DOMAIN_RESOURCE &&
               cbid == GP_CUPTI_CONTEXT_CREATED && context,
           "a callback of domain %u, number %u", domain, cbid);
    contexts++;
}

/* Counts neither nanoseconds nor from where others do. */
static uint64_t own_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec) * 3 + 1000;
}

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

/* What was found in the buffers. */
struct found {
    unsigned kernels, large, pinned, between, sets, calls, externals, strange;
    uint64_t begin, end;                   /* the first and the last moment that is named */
    uint32_t launches[LAUNCHES], said[64]; /* correlations */
};

static void widen(struct found *f, uint64_t start, uint64_t end)
{
    EXPECT(start && start <= end, "something ended before it began");
    f->begin = f->begin && f->begin < start ? f->begin : start;
    f->end = f->end > end ? f->end : end;
}

static void look_at_call(struct found *f, const struct gp_cupti_api *a)
{
    const char *name = "";
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetCallbackName(1, a->cbid, &name));
    widen(f, a->start, a->end);
    EXPECT(strcmp(name, "cuCtxGetCurrent") != 0, "a call that nobody wanted to see");
    if (strcmp(name, "cuLaunchKernel") == 0 && f->calls < LAUNCHES)
        f->launches[f->calls++] = a->correlation;
}

static void look_at(struct found *f, const void *record)
{
    const struct gp_cupti_kernel *k = record;
    const struct gp_cupti_memcpy *c = record;
    const struct gp_cupti_memcpy2 *two = record;
    const struct gp_cupti_memset *m = record;
    const struct gp_cupti_external *e = record;
    switch (*(const uint32_t *)record) {
    case GP_CUPTI_CONCURRENT_KERNEL:
        EXPECT(strcmp(k->name, "increment") == 0 && k->grid[0] == 2 && k->block[0] == 32,
               "a kernel %s of %d times %d", k->name, k->grid[0], k->block[0]);
        EXPECT(f->kernels < LAUNCHES && k->correlation == f->launches[f->kernels],
               "kernel %u belongs to no launch", f->kernels);
        f->kernels++;
        widen(f, k->start, k->end);
        break;
    case GP_CUPTI_MEMCPY:
        f->large += c->bytes == LARGE && c->copy == GP_CUPTI_HTOD && c->from == GP_CUPTI_PAGEABLE;
        f->pinned += c->copy == GP_CUPTI_DTOH && c->to == GP_CUPTI_PINNED;
        EXPECT(c->bytes == LARGE || c->copy == GP_CUPTI_DTOH, "a copy of %zu bytes",
               (size_t)c->bytes);
        widen(f, c->start, c->end);
        break;
    case GP_CUPTI_MEMCPY2:
        EXPECT(two->copy == GP_CUPTI_PTOP && two->from_device == (uint32_t)driver_device &&
                   two->to_device == (uint32_t)driver_device + 1 && two->bytes == 64 * sizeof(int),
               "a copy of %zu bytes from device %u to %u", (size_t)two->bytes, two->from_device,
               two->to_device);
        f->between++;
        widen(f, two->start, two->end);
        break;
    case GP_CUPTI_MEMSET:
        f->sets += m->bytes == 64 * sizeof(int) && m->value == 5;
        widen(f, m->start, m->end);
        break;
    case GP_CUPTI_DRIVER:
        look_at_call(f, record);
        break;
    case GP_CUPTI_EXTERNAL_CORRELATION:
        EXPECT(e->external == STEP && e->external_kind == GP_CUPTI_CUSTOM0,
               "it did nothing like it");
        f->said[f->externals++ % 64] = e->correlation;
        break;
    default:
        f->strange++;
    }
}

static void look_at_all(struct found *f)
{
    for (size_t i = 0; i < fulls; i++) {
        void *record = NULL;
        uint32_t r;
        while ((r = p.cuptiActivityGetNextRecord(full[i], valid[i], &record)) == GP_CUPTI_SUCCESS)
            look_at(f, record);
        EXPECT(r == GP_CUPTI_MAX_LIMIT_REACHED, "the records end in %u", r);
        free(full[i]);
    }
    fulls = 0;
}

static bool was_said(const struct found *f, uint32_t correlation)
{
    for (unsigned i = 0; i < f->externals && i < 64; i++)
        if (f->said[i] == correlation)
            return true;
    return false;
}

static bool has_second_device(void)
{
    int count = 0;
    CU(cuDeviceGetCount(&count));
    return count > driver_device + 1;
}

static void copy_to_second_device(CUdeviceptr from)
{
    CUdevice second = driver_device + 1;
    CUcontext there;
    CUdeviceptr to;
    CU(cuDevicePrimaryCtxRetain(&there, second));
    CU(cuCtxPushCurrent(there));
    CU(cuMemAlloc(&to, 64 * sizeof(int)));
    CU(cuMemcpyPeer(to, there, from, driver_context, 64 * sizeof(int)));
    CU(cuMemFree(to));
    CU(cuCtxPopCurrent(NULL));
    CU(cuDevicePrimaryCtxRelease(second));
}

static void work(CUfunction function)
{
    CUdeviceptr device;
    CUcontext current;
    int n = 64, host[64];
    void *parameters[] = {&device, &n};
    char *large = calloc(1, LARGE), *pinned;

    CU(cuMemAlloc(&device, LARGE));
    CU(cuMemcpyHtoD(device, large, LARGE));
    CU(cuMemsetD32(device, 5, 64));
    CU(cuCtxGetCurrent(&current));
    for (int i = 0; i < LAUNCHES; i++)
        CU(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(host, device, sizeof host));
    CU(cuMemAllocHost((void **)&pinned, sizeof host));
    CU(cuMemcpyDtoHAsync(pinned, device, sizeof host, NULL));
    EXPECT(host[63] == 5 + LAUNCHES, "value 63 is %d", host[63]);
    CU(cuCtxSynchronize());
    CU(cuMemFreeHost(pinned));
    if (has_second_device())
        copy_to_second_device(device);
    CU(cuMemFree(device));
    free(large);
}

static const uint32_t kinds[] = {GP_CUPTI_MEMCPY, GP_CUPTI_MEMSET,   GP_CUPTI_CONCURRENT_KERNEL,
                                 GP_CUPTI_DRIVER, GP_CUPTI_OVERHEAD, GP_CUPTI_EXTERNAL_CORRELATION,
                                 GP_CUPTI_MEMCPY2};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void profiled(CUfunction function)
{
    struct found f = {0};
    uint64_t before, after;
    size_t dropped = 1;

    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityRegisterCallbacks(requested, completed));
    for (size_t i = 0; i < KINDS; i++)
        GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityEnable(kinds[i]));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityEnableDriverApi(304, 0)); /* cuCtxGetCurrent */
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetTimestamp(&before));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityPushExternalCorrelationId(GP_CUPTI_CUSTOM0, STEP));
    work(function);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityPopExternalCorrelationId(GP_CUPTI_CUSTOM0, &after));
    EXPECT(after == STEP, "popped %zu", (size_t)after);
    GIVES(GP_CUPTI_QUEUE_EMPTY, p.cuptiActivityPopExternalCorrelationId(GP_CUPTI_CUSTOM0, NULL));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetTimestamp(&after));
    /* as PyTorch's does it: what is on its way comes all the same, and nothing is flushed unless a
     * buffer was asked for before */
    for (size_t i = 0; i < KINDS; i++)
        GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityDisable(kinds[i]));
    EXPECT(asked > 0 && fulls == 0, "%zu buffers were asked for, and %zu are full", asked, fulls);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityFlushAll(0));
    look_at_all(&f);
    EXPECT(f.kernels == LAUNCHES && f.calls == LAUNCHES, "%u kernels of %u launches", f.kernels,
           f.calls);
    EXPECT(f.large == 1, "one large copy is %u", f.large);
    EXPECT(f.pinned == 1, "one copy to pinned memory is %u", f.pinned);
    EXPECT(f.between == has_second_device(), "one copy between devices is %u", f.between);
    EXPECT(f.sets == 1 && f.strange == 0, "%u sets, %u strange records", f.sets, f.strange);
    for (int i = 0; i < LAUNCHES; i++)
        EXPECT(was_said(&f, f.launches[i]), "launch %d was nothing's", i);
    /* the clocks of two machines are compared by round trips; here is one: within a second */
    const uint64_t second = 3000000000u;
    EXPECT(f.begin + second > before && f.end < after + second, "at other times than it was");
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
    EXPECT(dropped == 0 && dropped_buffers == 0, "%zu records were lost", dropped);
    work(function);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityFlushAll(0));
    EXPECT(fulls == 0, "there are records of what nobody recorded");
}

static void refused(void)
{
    const char *text = "";
    GIVES(GP_CUPTI_NOT_SUPPORTED, p.cuptiActivityEnable(GP_CUPTI_RUNTIME));
    GIVES(GP_CUPTI_INVALID_KIND, p.cuptiActivityEnable(0));
    GIVES(GP_CUPTI_INVALID_KIND, p.cuptiActivityEnable(1000));
    GIVES(GP_CUPTI_NOT_SUPPORTED, p.cuptiProfilerInitialize(NULL));
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiActivityRegisterCallbacks(NULL, NULL));
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiActivityPushExternalCorrelationId(0, 1));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetResultString(GP_CUPTI_NOT_SUPPORTED, &text));
    EXPECT(strcmp(text, "CUPTI_ERROR_NOT_SUPPORTED") == 0, "it is called %s", text);
}

static bool told_late;

static void told_of_an_end(void *userdata, uint32_t domain, uint32_t cbid, const void *data)
{
    (void)userdata, (void)domain, (void)cbid, (void)data;
    told_late = true;
}

/* As the runtime does; whoever subscribed has ended by then. */
static void stop_at_exit(void)
{
    CUresult r = cuDevicePrimaryCtxRelease(driver_device);
    if (r != CUDA_SUCCESS || told_late) {
        SAY("FAIL at exit: %s%s", driver_name(r), told_late ? ", and a callback" : "");
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    struct subscriber *handle = NULL, *other = NULL;
    CUmodule module;
    uint32_t version = 0;

    REQUIRE(argc == 2, "usage: driver_cupti LIBCUPTI");
    open_library(argv[1]);
    atexit(stop_at_exit);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiGetVersion(&version));
    EXPECT(version == (strstr(argv[1], ".so.12") ? 28u : 130000u), "its version is %u", version);
    GIVES(GP_CUPTI_SUCCESS, p.cuptiSubscribe(&handle, told, &contexts));
    GIVES(GP_CUPTI_MULTIPLE_SUBSCRIBERS, p.cuptiSubscribe(&other, told, NULL));
    GIVES(GP_CUPTI_SUCCESS,
          p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_RESOURCE, GP_CUPTI_CONTEXT_CREATED));
    GIVES(GP_CUPTI_NOT_SUPPORTED, p.cuptiEnableCallback(1, handle, RUNTIME, 211));
    driver_start();
    EXPECT(contexts == 1, "%zu contexts were told of", contexts);
    CU(cuModuleLoadData(&module, kernels_ptx));
    refused();
    profiled(driver_function(module, "increment"));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiActivityRegisterTimestampCallback(own_clock));
    profiled(driver_function(module, "increment"));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiUnsubscribe(handle));
    GIVES(GP_CUPTI_INVALID_PARAMETER, p.cuptiUnsubscribe(handle));
    GIVES(GP_CUPTI_SUCCESS, p.cuptiFinalize());
    GIVES(GP_CUPTI_SUCCESS, p.cuptiSubscribe(&handle, told_of_an_end, NULL));
    GIVES(GP_CUPTI_SUCCESS,
          p.cuptiEnableCallback(1, handle, GP_CUPTI_DOMAIN_RESOURCE, GP_CUPTI_CONTEXT_ENDING));
    return finish("driver_cupti");
}
