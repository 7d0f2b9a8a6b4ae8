#include "null_driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "dispatch.h"
#include "function.h"
#include "gate.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "module.h"
#include "output.h"
#include "page.h"
#include "peer.h"

#define NULL_NAME(name) #name,
const char *const null_call_names[NULL_CALLS_COUNT] = {NULL_CALLS(NULL_NAME)};
const char *const null_kind_names[NULL_KINDS] = {"launch",       "launch in the legacy stream",
                                                 "event record", "stream waits for event",
                                                 "set memory",   "copy on the device"};
const enum null_call null_kind_call[NULL_KINDS] = {NULL_cuLaunchKernel,  NULL_cuLaunchKernel,
                                                   NULL_cuEventRecord,   NULL_cuStreamWaitEvent,
                                                   NULL_cuMemsetD8Async, NULL_cuMemcpyAsync};

#define CONTEXT ((CUcontext)(uintptr_t)0xa0)
#define OBJECT 0xb0 /* what the driver has for a handle */
#define MEMORY_BYTES ((size_t)1 << 20)
#define PARAMETERS 4
#define EVENTS 256 /* of which OBJECT is the client's */
#define LAG 2      /* how many are recorded before one passes on a GPU that is behind */
#define PLENTY (UINT64_C(64) << 30)

struct gp_channel {
    unsigned left;
    void (*between)(void);
    const struct gp_header *message;
    struct null_counts at_wait;        /* when it was waited for a message first */
    struct gp_rep_cuMemAlloc_v2 reply; /* the last one */
};

static struct gpw_session session;
static struct gp_channel channel;
static struct gpw_output output;
static struct null_counts counts;
static bool behind;
static uint64_t records, recorded[EVENTS], events;
static CUdeviceptr memory;

static void must(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "null_driver: %s\n", what);
    abort();
}

/* --- the driver -------------------------------------------------------------------------- */

#define COUNT(name) counts.calls[NULL_##name]++

static CUresult null_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **parameters, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)parameters, (void)extra;
    COUNT(cuLaunchKernel);
    return CUDA_SUCCESS;
}

static CUresult null_event_record(CUevent event, CUstream stream)
{
    (void)stream;
    COUNT(cuEventRecord);
    recorded[(uintptr_t)event % EVENTS] = ++records;
    return CUDA_SUCCESS;
}

static CUresult null_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    COUNT(cuStreamWaitEvent);
    return CUDA_SUCCESS;
}

static CUresult null_set(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    (void)at, (void)value, (void)bytes, (void)stream;
    COUNT(cuMemsetD8Async);
    return CUDA_SUCCESS;
}

static CUresult null_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    COUNT(cuMemcpyAsync);
    return CUDA_SUCCESS;
}

static CUresult null_event_query(CUevent event)
{
    COUNT(cuEventQuery);
    bool passed = records - recorded[(uintptr_t)event % EVENTS] >= (behind ? LAG : 0);
    return passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult null_event_synchronize(CUevent event)
{
    (void)event;
    COUNT(cuEventSynchronize);
    return CUDA_SUCCESS;
}

static CUresult null_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    COUNT(cuEventCreate);
    *event = (CUevent)(uintptr_t)++events;
    must(events < OBJECT, "events are not used again");
    return CUDA_SUCCESS;
}

static CUresult null_event_destroy(CUevent event)
{
    (void)event;
    COUNT(cuEventDestroy_v2);
    return CUDA_SUCCESS;
}

static CUresult null_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    COUNT(cuStreamIsCapturing);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult null_stream_query(CUstream stream)
{
    (void)stream;
    COUNT(cuStreamQuery);
    return CUDA_SUCCESS;
}

static CUresult null_get_current(CUcontext *context)
{
    COUNT(cuCtxGetCurrent);
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult null_set_current(CUcontext context)
{
    (void)context;
    COUNT(cuCtxSetCurrent);
    return CUDA_SUCCESS;
}

static CUresult null_get_device(CUdevice *device)
{
    COUNT(cuCtxGetDevice);
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult null_stream_context(CUstream stream, CUcontext *context)
{
    (void)stream;
    COUNT(cuStreamGetCtx);
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult null_parameter(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    (void)f;
    if (index >= PARAMETERS)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = index * sizeof(uint64_t);
    *size = sizeof(uint64_t);
    return CUDA_SUCCESS;
}

static CUresult null_attribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    (void)attribute, (void)f;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult null_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)attribute, (void)device;
    *value = 1;
    return CUDA_SUCCESS;
}

static CUresult null_reserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr want,
                             unsigned long long flags)
{
    (void)bytes, (void)align, (void)flags;
    *at = want;
    return CUDA_SUCCESS;
}

static CUresult null_mem_create(CUmemGenericAllocationHandle *pages, size_t bytes,
                                const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    COUNT(cuMemCreate);
    *pages = OBJECT;
    return CUDA_SUCCESS;
}

static CUresult null_mem_release(CUmemGenericAllocationHandle pages)
{
    (void)pages;
    COUNT(cuMemRelease);
    return CUDA_SUCCESS;
}

static CUresult null_mem_map(CUdeviceptr at, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle pages, unsigned long long flags)
{
    (void)at, (void)bytes, (void)offset, (void)pages, (void)flags;
    COUNT(cuMemMap);
    return CUDA_SUCCESS;
}

static CUresult null_mem_unmap(CUdeviceptr at, size_t bytes)
{
    (void)at, (void)bytes;
    COUNT(cuMemUnmap);
    return CUDA_SUCCESS;
}

static CUresult null_mem_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who,
                                size_t count)
{
    (void)at, (void)bytes, (void)who, (void)count;
    COUNT(cuMemSetAccess);
    return CUDA_SUCCESS;
}

static CUresult null_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {
    .cuLaunchKernel = null_launch,
    .cuEventRecord = null_event_record,
    .cuStreamWaitEvent = null_stream_wait,
    .cuMemsetD8Async = null_set,
    .cuMemcpyDtoDAsync_v2 = null_copy,
    .cuEventQuery = null_event_query,
    .cuEventSynchronize = null_event_synchronize,
    .cuEventCreate = null_event_create,
    .cuEventDestroy_v2 = null_event_destroy,
    .cuStreamIsCapturing = null_capturing,
    .cuStreamQuery = null_stream_query,
    .cuCtxGetCurrent = null_get_current,
    .cuCtxSetCurrent = null_set_current,
    .cuCtxGetDevice = null_get_device,
    .cuStreamGetCtx = null_stream_context,
    .cuFuncGetParamInfo = null_parameter,
    .cuFuncGetAttribute = null_attribute,
    .cuDeviceGetAttribute = null_device_attribute,
    .cuMemAddressReserve = null_reserve,
    .cuMemCreate = null_mem_create,
    .cuMemRelease = null_mem_release,
    .cuMemMap = null_mem_map,
    .cuMemUnmap = null_mem_unmap,
    .cuMemSetAccess = null_mem_access,
    .cuThreadExchangeStreamCaptureMode = null_mode,
};

/* --- the transport ----------------------------------------------------------------------- */

static int null_send(struct gp_channel *c, const struct iovec *iov, int count, unsigned flags)
{
    (void)flags;
    size_t bytes = iov[0].iov_len < sizeof c->reply ? iov[0].iov_len : sizeof c->reply;
    must(count > 0, "an empty answer");
    memcpy(&c->reply, iov[0].iov_base, bytes);
    return 0;
}

static int null_recv(struct gp_channel *c, int64_t timeout_us, const void **message, size_t *size)
{
    if (c->left == 0) {
        if (timeout_us != 0) {
            c->at_wait = counts;
            session.ended = true;
        }
        return -EAGAIN;
    }
    c->left--;
    if (c->between)
        c->between();
    *message = c->message;
    *size = c->message->size;
    return 0;
}

static void null_release(struct gp_channel *c)
{
    (void)c;
}

static int null_flush(struct gp_channel *c)
{
    (void)c;
    return 0;
}

static const struct gp_transport transport = {.name = "null",
                                              .send = null_send,
                                              .recv = null_recv,
                                              .release = null_release,
                                              .flush = null_flush};

/* --- the session ------------------------------------------------------------------------- */

static bool idle(struct gpw_session *s)
{
    (void)s;
    return true;
}

static void handle(const struct gp_header *h, unsigned count, void (*between)(void))
{
    channel.message = h;
    channel.left = count;
    channel.between = between;
    channel.reply.r.result = CUDA_SUCCESS;
    session.ended = false;
    gpw_loop_run(&session, idle);
    must(channel.left == 0, "the worker has ended the session");
    must(channel.reply.r.result == CUDA_SUCCESS, gp_op_info(h->op)->name);
}

static uint64_t object(enum gp_handle_kind kind, uint32_t index, uint64_t real, bool of_context)
{
    uint64_t id = gp_handle_make(kind, index, 0);
    gpw_handle_put(&session, kind, id, real, CUDA_SUCCESS);
    gpw_handle_bind(&session, kind, id, 0, of_context, 0);
    return id;
}

/* As the arbiter of a GPU would say to who is alone: its turn goes on, there is memory. */
static void take_seat(void)
{
    int page_fd, bell_fd;
    must(gp_page_make(&page_fd, &bell_fd) == 0, "a page");
    struct gp_page *page = mmap(NULL, GP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd,
                                0);
    must(page != MAP_FAILED, "the arbiter's side of the page");
    page->version = GP_PAGE_VERSION;
    page->flags = GP_PAGE_HOLDS;
    page->check_at = UINT64_MAX;
    page->granted = page->memory_limit = PLENTY;
    page->members = 1;
    must(gpw_gate_open(&session, 0, page_fd, bell_fd) == 0, "a seat");
    munmap(page, GP_PAGE_BYTES);
}

static CUdeviceptr allocate(uint64_t bytes)
{
    struct gp_req_cuMemAlloc_v2 q = {
        .h = {.size = sizeof q, .op = GP_OP_cuMemAlloc_v2, .flags = GP_FLAG_WAITED},
        .bytesize = bytes};
    handle(&q.h, 1, NULL);
    must(channel.reply.dptr != 0, "memory");
    return channel.reply.dptr;
}

void null_session_open(bool seat)
{
    struct gpw_session *s = &session;
    static const struct gpw_peers_at nowhere;
    *s = (struct gpw_session){.driver = &driver,
                              .transport = &transport,
                              .channel = &channel,
                              .output = &output,
                              .device_count = 1,
                              .greeted = true,
                              .strict_now = false};
    output.file = -1;
    s->handles = gpw_handles_new();
    must(s->handles && gpw_peers_open(s, &nowhere) == 0 && gpw_functions_open(s) == 0 &&
             gpw_graphs_open(s) == 0 && gpw_host_functions_open(s) == 0 &&
             gpw_memory_open(s) == 0 && gpw_modules_open(s) == 0,
         "the session");
    if (seat)
        take_seat();
    object(GP_HANDLE_CONTEXT, 1, (uint64_t)CONTEXT, false);
    object(GP_HANDLE_STREAM, 1, OBJECT, true);
    object(GP_HANDLE_EVENT, 1, OBJECT, true);
    uint64_t module = object(GP_HANDLE_MODULE, 1, OBJECT, true);
    object(GP_HANDLE_FUNCTION, 1, OBJECT, false);
    gpw_handle_bind(s, GP_HANDLE_FUNCTION, gp_handle_make(GP_HANDLE_FUNCTION, 1, 0), module, false,
                    0);
    must(gpw_memory_place(s, GP_WINDOW_BASE) == CUDA_SUCCESS, "addresses");
    memory = allocate(MEMORY_BYTES);
}

void null_session_behind(bool is_behind)
{
    behind = is_behind;
}

/* --- messages ---------------------------------------------------------------------------- */

union message {
    struct gp_header h;
    struct gp_req_gp_launch launch;
    struct gp_req_cuEventRecord record;
    struct gp_req_cuStreamWaitEvent wait;
    struct gp_req_cuMemsetD8Async set;
    struct gp_req_gp_copy copy;
    uint8_t bytes[512];
};

static void write_launch(union message *m, uint64_t stream)
{
    m->launch.h = (struct gp_header){.size = sizeof m->launch + PARAMETERS * sizeof(uint64_t),
                                     .op = GP_OP_gp_launch};
    m->launch.function = gp_handle_make(GP_HANDLE_FUNCTION, 1, 0);
    m->launch.stream = stream;
    m->launch.grid_x = m->launch.grid_y = m->launch.grid_z = 1;
    m->launch.block_x = m->launch.block_y = m->launch.block_z = 1;
    m->launch.parameter_bytes = m->launch.n_parameters = PARAMETERS * sizeof(uint64_t);
}

static void write_message(enum null_kind kind, union message *m)
{
    uint64_t stream = gp_handle_make(GP_HANDLE_STREAM, 1, 0);
    uint64_t event = gp_handle_make(GP_HANDLE_EVENT, 1, 0);
    memset(m, 0, sizeof *m);
    switch (kind) {
    case NULL_LAUNCH:
    case NULL_LAUNCH_LEGACY:
        write_launch(m, kind == NULL_LAUNCH ? stream : GP_STREAM_LEGACY);
        break;
    case NULL_RECORD:
        m->record = (struct gp_req_cuEventRecord){
            {.size = sizeof m->record, .op = GP_OP_cuEventRecord}, event, stream};
        break;
    case NULL_WAIT:
        m->wait = (struct gp_req_cuStreamWaitEvent){
            {.size = sizeof m->wait, .op = GP_OP_cuStreamWaitEvent}, stream, event, 0};
        break;
    case NULL_SET:
        m->set = (struct gp_req_cuMemsetD8Async){
            {.size = sizeof m->set, .op = GP_OP_cuMemsetD8Async}, memory, 0, 64, stream};
        break;
    default:
        m->copy = (struct gp_req_gp_copy){
            {.size = sizeof m->copy, .op = GP_OP_gp_copy}, memory + 4096, memory, 64, stream, 0};
        break;
    }
}

struct null_counts null_session_run(enum null_kind kind, unsigned count, void (*between)(void))
{
    union message m;
    write_message(kind, &m);
    memset(&counts, 0, sizeof counts);
    handle(&m.h, count, between);
    must(!session.failures.kinds, "the messages fail");
    return channel.at_wait;
}

struct null_counts null_session_churn(uint64_t bytes, unsigned count)
{
    memset(&counts, 0, sizeof counts);
    for (unsigned i = 0; i < count; i++) {
        struct gp_req_cuMemFree_v2 q = {.h = {.size = sizeof q, .op = GP_OP_cuMemFree_v2},
                                        .dptr = allocate(bytes)};
        handle(&q.h, 1, NULL);
    }
    must(!session.failures.kinds, "allocations fail");
    return channel.at_wait;
}
