/*
 * Random operations from many threads: memory of every kind, mapped by hand among it, copies of
 * every kind, to another device and back where there is one, memsets, kernels, events, captures
 * and graph launches. Every byte is modelled, and compared.
 *
 *   driver_random SEED THREADS OPERATIONS SECONDS
 *
 * ends after so many operations in all or so many seconds (0: no such end), whichever
 * comes first. A thread does the same things for the same seed and number of operations.
 */
#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_BUFFERS 8
#define HOST_BUFFERS 6
#define BIGGEST (1300u << 10) /* more than one piece of a long copy */
#define GRAPH_NODES 6
#define GRAPH_HOST_COPIES 16 /* in the life of a thread: they last as long as the process */
#define GRAPH_HOST_BYTES 4096

enum device_kind { PLAIN, PITCHED, MAPPED, ORDERED, FROM_POOL, DEVICE_KINDS };
enum host_kind { PAGEABLE, PINNED, REGISTERED, HOST_KINDS };

struct buffer {
    int kind;
    bool busy; /* host memory that the GPU may read or write until the next wait */
    size_t bytes, pitch;
    size_t mapped; /* bytes of the addresses of MAPPED */
    CUdeviceptr device;
    uint8_t *host, *model;
};

/* What was done to bytes, so that a graph's launches can do it to the model again. */
struct action {
    enum { SET, COPY, INCREMENT } what;
    uint8_t *to;
    const uint8_t *from;
    size_t width, height, to_pitch, from_pitch;
    uint32_t value, unit;
};

struct worker {
    pthread_t thread;
    unsigned number, random;
    struct buffer device[DEVICE_BUFFERS], host[HOST_BUFFERS];
    CUstream streams[2];
    unsigned at; /* the stream in use: the other one has been waited for */
    CUevent event;
    CUmemoryPool pool;
    struct buffer far;             /* on the other device, if there is one */
    unsigned called, calls_wanted; /* of host functions */
    uint64_t operations;
    bool capturing;
    unsigned graph_host_copies;
    struct action actions[GRAPH_NODES];
    unsigned action_count;
};

static CUfunction increment;
static CUcontext other_context; /* of another device; NULL: there is none */
static uint64_t operations_each;
static time_t ends;
/* A wait for the whole context is not made while anybody captures. */
static pthread_rwlock_t captures = PTHREAD_RWLOCK_INITIALIZER;

static unsigned pick(struct worker *w, unsigned n)
{
    return check_random(&w->random) % n;
}

static size_t pick_size(struct worker *w)
{
    switch (pick(w, 16)) {
    case 0:
        return 1 + pick(w, BIGGEST);
    case 1:
    case 2:
    case 3:
        return 1 + pick(w, 65536);
    default:
        return 1 + pick(w, 4096);
    }
}

static CUstream stream_of(struct worker *w)
{
    return w->streams[w->at];
}

/* --- the model ---------------------------------------------------------------------- */

static void act(const struct action *a)
{
    for (size_t row = 0; row < a->height; row++) {
        uint8_t *to = a->to + row * a->to_pitch;
        switch (a->what) {
        case SET:
            for (size_t i = 0; i < a->width; i++)
                to[i] = (uint8_t)(a->value >> (8 * (i % a->unit)));
            break;
        case COPY:
            memmove(to, a->from + row * a->from_pitch, a->width);
            break;
        case INCREMENT:
            for (size_t i = 0; i + sizeof(int) <= a->width; i += sizeof(int)) {
                uint32_t value;
                memcpy(&value, to + i, sizeof value);
                value++;
                memcpy(to + i, &value, sizeof value);
            }
        }
    }
}

/* Now, or with every launch of the graph. */
static void happens(struct worker *w, struct action a)
{
    if (w->capturing)
        w->actions[w->action_count++] = a;
    else
        act(&a);
}

static void compare(struct worker *w, const char *what, const uint8_t *found,
                    const struct buffer *b)
{
    if (memcmp(found, b->model, b->bytes) == 0)
        return;
    size_t i = 0, wrong = 0;
    while (found[i] == b->model[i])
        i++;
    for (size_t k = i; k < b->bytes; k++)
        wrong += found[k] != b->model[k];
    REQUIRE(false,
            "thread %u, operation %llu: %s of kind %d, %zu bytes: %zu are wrong, the "
            "first at %zu (%u, not %u)",
            w->number, (unsigned long long)w->operations, what, b->kind, b->bytes, wrong, i,
            found[i], b->model[i]);
}

/* --- waiting -------------------------------------------------------------------------- */

static void wait_context(struct worker *w)
{
    if (pthread_rwlock_trywrlock(&captures) != 0) {
        CU(cuStreamSynchronize(stream_of(w)));
        return;
    }
    CU(cuCtxSynchronize());
    pthread_rwlock_unlock(&captures);
}

static void poll_event(struct worker *w)
{
    CUresult r;
    CU(cuEventRecord(w->event, stream_of(w)));
    while ((r = cuEventQuery(w->event)) == CUDA_ERROR_NOT_READY)
        ;
    CU(r);
}

static void poll_stream(struct worker *w)
{
    CUresult r;
    while ((r = cuStreamQuery(stream_of(w))) == CUDA_ERROR_NOT_READY)
        ;
    CU(r);
}

static void wait_all(struct worker *w)
{
    switch (pick(w, 8)) {
    case 0:
        wait_context(w);
        break;
    case 1:
    case 2:
        CU(cuEventRecord(w->event, stream_of(w)));
        CU(cuEventSynchronize(w->event));
        break;
    case 3:
        poll_event(w);
        break;
    case 4:
        poll_stream(w);
        break;
    default:
        CU(cuStreamSynchronize(stream_of(w)));
    }
    for (unsigned i = 0; i < HOST_BUFFERS; i++) {
        struct buffer *b = &w->host[i];
        if (b->busy)
            compare(w, "host memory", b->host, b);
        b->busy = false;
    }
    unsigned called = __atomic_load_n(&w->called, __ATOMIC_ACQUIRE);
    REQUIRE(called == w->calls_wanted, "thread %u: %u host functions of %u ran", w->number, called,
            w->calls_wanted);
}

/* What follows on the other stream comes behind what was submitted here. */
static void change_stream(struct worker *w)
{
    CU(cuEventRecord(w->event, stream_of(w)));
    w->at = !w->at;
    CU(cuStreamWaitEvent(stream_of(w), w->event, 0));
}

/* --- memory ----------------------------------------------------------------------------- */

/* Memory, addresses and access, each by its own call. */
static void map(struct buffer *b)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory;
    size_t granule = 0;
    CU(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    b->mapped = (b->bytes + granule - 1) / granule * granule;
    CU(cuMemAddressReserve(&b->device, b->mapped, 0, 0, 0));
    CU(cuMemCreate(&memory, b->mapped, &prop, 0));
    CU(cuMemMap(b->device, b->mapped, 0, memory, 0));
    CU(cuMemRelease(memory)); /* it stays as long as it is mapped */
    CU(cuMemSetAccess(b->device, b->mapped, &access, 1));
}

static void unmap(const struct buffer *b)
{
    CU(cuMemUnmap(b->device, b->mapped));
    CU(cuMemAddressFree(b->device, b->mapped));
}

static void device_free(struct worker *w, struct buffer *b)
{
    if (!b->device)
        return;
    if (b->kind >= ORDERED && pick(w, 4)) {
        CU(cuMemFreeAsync(b->device, stream_of(w)));
    } else {
        wait_all(w);
        if (b->kind == MAPPED)
            unmap(b);
        else
            CU(cuMemFree(b->device));
    }
    free(b->model);
    *b = (struct buffer){.device = 0};
}

static void device_alloc(struct worker *w, struct buffer *b)
{
    *b = (struct buffer){.kind = (int)pick(w, DEVICE_KINDS), .bytes = pick_size(w)};
    switch (b->kind) {
    case PLAIN:
        CU(cuMemAlloc(&b->device, b->bytes));
        break;
    case PITCHED: {
        size_t width = 1 + pick(w, 2000), height = 1 + pick(w, 20);
        CU(cuMemAllocPitch(&b->device, &b->pitch, width, height, 4));
        b->bytes = b->pitch * height;
        break;
    }
    case MAPPED:
        map(b);
        break;
    case ORDERED:
        CU(cuMemAllocAsync(&b->device, b->bytes, stream_of(w)));
        break;
    default:
        CU(cuMemAllocFromPoolAsync(&b->device, b->bytes, w->pool, stream_of(w)));
    }
    b->model = check_alloc(b->bytes);
    uint8_t value = (uint8_t)pick(w, 256);
    memset(b->model, value, b->bytes);
    CU(cuMemsetD8Async(b->device, value, b->bytes, stream_of(w)));
}

static void host_free(struct buffer *b)
{
    if (!b->host)
        return;
    if (b->kind == PINNED) {
        CU(cuMemFreeHost(b->host));
    } else {
        if (b->kind == REGISTERED)
            CU(cuMemHostUnregister(b->host));
        free(b->host);
    }
    free(b->model);
    *b = (struct buffer){.host = NULL};
}

static void host_fill(struct worker *w, struct buffer *b)
{
    unsigned value = pick(w, 256), step = 1 + pick(w, 7);
    for (size_t i = 0; i < b->bytes; i++)
        b->host[i] = b->model[i] = (uint8_t)(value + i * step);
}

static void host_alloc(struct worker *w, struct buffer *b)
{
    *b = (struct buffer){.kind = (int)pick(w, HOST_KINDS), .bytes = pick_size(w)};
    if (b->kind == PINNED) {
        CU(cuMemHostAlloc((void **)&b->host, b->bytes, 0));
    } else {
        /* whole pages of its own: what is registered must not meet what others register */
        REQUIRE((b->host = aligned_alloc(4096, (b->bytes + 4095) / 4096 * 4096)), "no memory");
        if (b->kind == REGISTERED)
            CU(cuMemHostRegister(b->host, b->bytes, 0));
    }
    b->model = check_alloc(b->bytes);
    host_fill(w, b);
}

/* Another one in the place of an old one. */
static void change_memory(struct worker *w)
{
    if (pick(w, 3)) {
        struct buffer *b = &w->device[pick(w, DEVICE_BUFFERS)];
        device_free(w, b);
        device_alloc(w, b);
    } else {
        struct buffer *b = &w->host[pick(w, HOST_BUFFERS)];
        wait_all(w);
        host_free(b);
        host_alloc(w, b);
    }
}

static void ask_about(struct worker *w)
{
    const struct buffer *b = &w->device[pick(w, DEVICE_BUFFERS)];
    size_t offset = pick(w, (unsigned)b->bytes), size = 0, free_bytes, total;
    CUdeviceptr base = 0;
    CUmemorytype type = 0;

    CU(cuMemGetAddressRange(&base, &size, b->device + offset));
    REQUIRE(base == b->device && size >= b->bytes, "thread %u: %zu bytes at %llx: %zu at %llx",
            w->number, b->bytes, b->device, size, base);
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b->device + offset));
    REQUIRE(type == CU_MEMORYTYPE_DEVICE, "its type is %d", (int)type);
    if (pick(w, 20) == 0)
        CU(cuMemGetInfo(&free_bytes, &total));
    if (pick(w, 20) == 0)
        CU(cuMemPoolTrimTo(w->pool, 0));
}

/* --- work -------------------------------------------------------------------------------- */

static struct buffer *any_device(struct worker *w)
{
    return &w->device[pick(w, DEVICE_BUFFERS)];
}

struct part {
    size_t at, size;
};

/* Of `bytes` bytes, a multiple of `unit` in place and size; of size 0 if there is none. */
static struct part part(struct worker *w, size_t bytes, size_t unit)
{
    if (bytes < unit)
        return (struct part){0, 0};
    size_t at = pick(w, (unsigned)(bytes / unit)) * unit;
    return (struct part){at, (1 + pick(w, (unsigned)((bytes - at) / unit))) * unit};
}

static void set_memory(struct worker *w)
{
    struct buffer *b = any_device(w);
    unsigned unit = 1u << pick(w, 3);
    uint32_t value = check_random(&w->random);
    struct part p = part(w, b->bytes, unit);
    if (p.size == 0)
        return;
    if (unit == 1)
        CU(cuMemsetD8Async(b->device + p.at, (uint8_t)value, p.size, stream_of(w)));
    else if (unit == 2)
        CU(cuMemsetD16Async(b->device + p.at, (uint16_t)value, p.size / 2, stream_of(w)));
    else
        CU(cuMemsetD32Async(b->device + p.at, value, p.size / 4, stream_of(w)));
    happens(w, (struct action){.what = SET,
                               .to = b->model + p.at,
                               .width = p.size,
                               .height = 1,
                               .value = value,
                               .unit = unit});
}

static void launch(struct worker *w)
{
    struct buffer *b = any_device(w);
    struct part p = part(w, b->bytes < 65536 ? b->bytes : 65536, 4);
    if (p.size == 0)
        return;
    CUdeviceptr values = b->device + p.at;
    int n = (int)(p.size / 4);
    void *parameters[] = {&values, &n};
    CU(cuLaunchKernel(increment, (unsigned)(n + 127) / 128, 1, 1, 128, 1, 1, 0, stream_of(w),
                      parameters, NULL));
    happens(
        w, (struct action){.what = INCREMENT, .to = b->model + p.at, .width = p.size, .height = 1});
}

static void copy_on_device(struct worker *w)
{
    unsigned from = pick(w, DEVICE_BUFFERS),
             to = (from + 1 + pick(w, DEVICE_BUFFERS - 1)) % DEVICE_BUFFERS;
    struct buffer *a = &w->device[from], *b = &w->device[to];
    size_t bytes = a->bytes < b->bytes ? a->bytes : b->bytes;
    struct part p = part(w, bytes, 1);
    if (pick(w, 2))
        CU(cuMemcpyDtoDAsync(b->device + p.at, a->device + p.at, p.size, stream_of(w)));
    else
        CU(cuMemcpyAsync(b->device + p.at, a->device + p.at, p.size, stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = b->model + p.at,
                               .from = a->model + p.at,
                               .width = p.size,
                               .height = 1});
}

/* There or back; what lies there is modelled, too. */
static void copy_to_other_device(struct worker *w)
{
    struct buffer *b = any_device(w), *far = &w->far;
    if (!far->device)
        return;
    bool back = pick(w, 2);
    const struct buffer *from = back ? far : b, *to = back ? b : far;
    struct part p = part(w, b->bytes < far->bytes ? b->bytes : far->bytes, 1);
    CU(cuMemcpyPeerAsync(to->device + p.at, back ? driver_context : other_context,
                         from->device + p.at, back ? other_context : driver_context, p.size,
                         stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = to->model + p.at,
                               .from = from->model + p.at,
                               .width = p.size,
                               .height = 1});
}

static void copy_rows(struct worker *w, struct buffer *d, struct buffer *h, size_t bytes,
                      bool to_device)
{
    size_t pitch = 1 + pick(w, bytes < 3000 ? (unsigned)bytes : 3000),
           width = 1 + pick(w, (unsigned)pitch);
    size_t rows = (bytes - width) / pitch + 1,
           height = 1 + pick(w, rows < 12 ? (unsigned)rows : 12);
    CUDA_MEMCPY2D c = {
        .WidthInBytes = width, .Height = height, .srcPitch = pitch, .dstPitch = pitch};
    c.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    c.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    c.srcHost = h->host;
    c.srcDevice = d->device;
    c.dstHost = h->host;
    c.dstDevice = d->device;
    CU(cuMemcpy2DAsync(&c, stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = to_device ? d->model : h->model,
                               .from = to_device ? h->model : d->model,
                               .width = width,
                               .height = height,
                               .to_pitch = pitch,
                               .from_pitch = pitch});
}

/* The legacy stream is not in the order of ours: alone, and waited for. */
static void copy_blocking(struct worker *w, struct buffer *d, struct buffer *h, struct part p,
                          bool to_device)
{
    wait_all(w);
    if (to_device) {
        CU(cuMemcpyHtoD(d->device + p.at, h->host + p.at, p.size));
        CU(cuStreamSynchronize(CU_STREAM_LEGACY));
        memcpy(d->model + p.at, h->model + p.at, p.size);
    } else {
        CU(cuMemcpyDtoH(h->host + p.at, d->device + p.at, p.size));
        memcpy(h->model + p.at, d->model + p.at, p.size);
        compare(w, "host memory behind a blocking copy", h->host, h);
    }
}

static void copy_with_host(struct worker *w)
{
    struct buffer *d = any_device(w), *h = &w->host[pick(w, HOST_BUFFERS)];
    size_t bytes = d->bytes < h->bytes ? d->bytes : h->bytes;
    bool to_device = pick(w, 2);
    if (w->capturing) { /* what is not pinned cannot be captured */
        if (h->kind == PAGEABLE || w->graph_host_copies == GRAPH_HOST_COPIES)
            return;
        w->graph_host_copies++;
        bytes = bytes < GRAPH_HOST_BYTES ? bytes : GRAPH_HOST_BYTES;
    }
    struct part p = part(w, bytes, 1);
    unsigned how = w->capturing ? 7 : pick(w, 8);
    if (how == 0) {
        copy_blocking(w, d, h, p, to_device);
        return;
    }
    if (how == 1) {
        copy_rows(w, d, h, bytes, to_device);
    } else {
        if (to_device)
            CU(cuMemcpyHtoDAsync(d->device + p.at, h->host + p.at, p.size, stream_of(w)));
        else
            CU(cuMemcpyDtoHAsync(h->host + p.at, d->device + p.at, p.size, stream_of(w)));
        happens(w, (struct action){.what = COPY,
                                   .to = (to_device ? d : h)->model + p.at,
                                   .from = (to_device ? h : d)->model + p.at,
                                   .width = p.size,
                                   .height = 1});
    }
    /* pageable memory has been read when the call returns, and may change at once */
    if (to_device && h->kind == PAGEABLE && !h->busy && pick(w, 2))
        host_fill(w, h);
    else
        h->busy |= h->kind != PAGEABLE || !to_device;
}

static void CUDA_CB count_call(void *called)
{
    __atomic_add_fetch((unsigned *)called, 1, __ATOMIC_RELEASE);
}

static void call_host(struct worker *w)
{
    CU(cuLaunchHostFunc(stream_of(w), count_call, &w->called));
    w->calls_wanted++;
}

static void check_device(struct worker *w)
{
    struct buffer *b = any_device(w);
    uint8_t *found = check_alloc(b->bytes);
    CU(cuMemcpyDtoHAsync(found, b->device, b->bytes, stream_of(w)));
    wait_all(w);
    compare(w, "device memory", found, b);
    free(found);
}

/* --- graphs -------------------------------------------------------------------------------- */

static void captured_work(struct worker *w)
{
    switch (pick(w, 4)) {
    case 0:
        set_memory(w);
        break;
    case 1:
        copy_on_device(w);
        break;
    case 2:
        copy_with_host(w);
        break;
    default:
        launch(w);
    }
}

static void run_graph(struct worker *w)
{
    CUgraph graph;
    CUgraphExec exec;
    unsigned nodes = 1 + pick(w, GRAPH_NODES), launches = 1 + pick(w, 3);
    CUstreamCaptureMode mode = pick(w, 2) ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                          : CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_rwlock_rdlock(&captures);
    w->action_count = 0;
    w->capturing = true;
    CU(cuStreamBeginCapture(stream_of(w), mode));
    for (unsigned i = 0; i < nodes; i++)
        captured_work(w);
    CU(cuStreamEndCapture(stream_of(w), &graph));
    w->capturing = false;
    pthread_rwlock_unlock(&captures);
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < launches; i++) {
        CU(cuGraphLaunch(exec, stream_of(w)));
        for (unsigned k = 0; k < w->action_count; k++)
            act(&w->actions[k]);
    }
    if (pick(w, 2))
        wait_all(w);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* --- all of it ------------------------------------------------------------------------------- */

static void operate(struct worker *w)
{
    unsigned what = pick(w, 100);
    if (what < 12)
        set_memory(w);
    else if (what < 24)
        launch(w);
    else if (what < 33)
        copy_on_device(w);
    else if (what < 36)
        copy_to_other_device(w);
    else if (what < 70)
        copy_with_host(w);
    else if (what < 75)
        change_memory(w);
    else if (what < 80)
        ask_about(w);
    else if (what < 87)
        change_stream(w);
    else if (what < 89)
        call_host(w);
    else if (what < 91)
        run_graph(w);
    else if (what < 96)
        wait_all(w);
    else
        check_device(w);
}

/* In the legacy stream, and waited for: no stream of this thread knows the other device. */
static void far_alloc(struct worker *w)
{
    struct buffer *b = &w->far;
    if (!other_context)
        return;
    b->bytes = 1 + pick(w, 1u << 17);
    b->model = check_alloc(b->bytes);
    memset(b->model, 7, b->bytes);
    CU(cuCtxSetCurrent(other_context));
    CU(cuMemAlloc(&b->device, b->bytes));
    CU(cuMemsetD8(b->device, 7, b->bytes));
    CU(cuStreamSynchronize(CU_STREAM_LEGACY));
    CU(cuCtxSetCurrent(driver_context));
}

static void far_free(struct worker *w)
{
    if (w->far.device)
        CU(cuMemFree(w->far.device));
    free(w->far.model);
}

static void begin(struct worker *w)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    far_alloc(w);
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemPoolCreate(&w->pool, &props));
    CU(cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 2; i++)
        CU(cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        device_alloc(w, &w->device[i]);
    for (unsigned i = 0; i < HOST_BUFFERS; i++)
        host_alloc(w, &w->host[i]);
}

static void end(struct worker *w)
{
    wait_all(w);
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        device_free(w, &w->device[i]);
    wait_all(w);
    far_free(w);
    for (unsigned i = 0; i < HOST_BUFFERS; i++)
        host_free(&w->host[i]);
    for (unsigned i = 0; i < 2; i++)
        CU(cuStreamDestroy(w->streams[i]));
    CU(cuEventDestroy(w->event));
    CU(cuMemPoolDestroy(w->pool));
}

static void *run(void *arg)
{
    struct worker *w = arg;
    begin(w);
    while ((!operations_each || w->operations < operations_each) &&
           (!ends || w->operations % 64 || time(NULL) < ends)) {
        operate(w);
        w->operations++;
    }
    end(w);
    return NULL;
}

static void other_start(void)
{
    CUdevice other;
    int count = 0;
    CU(cuDeviceGetCount(&count));
    if (count < 2)
        return;
    CU(cuDeviceGet(&other, (driver_device + 1) % count));
    CU(cuDevicePrimaryCtxRetain(&other_context, other));
}

static void other_stop(void)
{
    CUdevice other;
    if (!other_context)
        return;
    CU(cuCtxSetCurrent(other_context));
    CU(cuCtxGetDevice(&other));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuDevicePrimaryCtxRelease(other));
}

int main(int count, char **arguments)
{
    static struct worker workers[64];
    CUmodule module;
    uint64_t operations = 0;

    REQUIRE(count == 5, "usage: driver_random SEED THREADS OPERATIONS SECONDS");
    unsigned seed = (unsigned)atoi(arguments[1]), threads = (unsigned)atoi(arguments[2]);
    REQUIRE(threads >= 1 && threads <= 64, "1 to 64 threads");
    operations_each = (strtoull(arguments[3], NULL, 10) + threads - 1) / threads;
    if (atoi(arguments[4]))
        ends = time(NULL) + atoi(arguments[4]);
    REQUIRE(operations_each || ends, "it would never end");
    driver_start();
    other_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    for (unsigned i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = seed * 7919u + i * 104729u;
        REQUIRE(pthread_create(&workers[i].thread, NULL, run, &workers[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        operations += workers[i].operations;
    }
    CU(cuModuleUnload(module));
    other_stop();
    driver_stop();
    printf("%llu operations in %u threads, seed %u\n", (unsigned long long)operations, threads,
           seed);
    return finish("driver_random");
}
