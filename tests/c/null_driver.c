#include "null_driver.h"
#include "null_gpu.h"

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
#include "later.h"
#include "loop.h"
#include "memory.h"
#include "memory_internal.h"
#include "module.h"
#include "output.h"
#include "page.h"
#include "peer.h"

const char *const null_kind_names[NULL_KINDS] = {
    "launch",     "launch in the legacy stream", "event record",           "stream waits for event",
    "set memory", "copy on the device",          "copy into pinned memory"};
const enum null_call null_kind_call[NULL_KINDS] = {
    NULL_cuLaunchKernel,  NULL_cuLaunchKernel, NULL_cuEventRecord,    NULL_cuStreamWaitEvent,
    NULL_cuMemsetD8Async, NULL_cuMemcpyAsync,  NULL_cuMemcpyDtoHAsync};

#define MEMORY_BYTES ((size_t)1 << 20)
#define PINNED_AT 0x7f0000000000 /* of the client's addresses */
#define PLENTY (UINT64_C(64) << 30)
#define GPU_LOOKS 4    /* the worker looks so often for a message while the GPU is at a kernel */
#define CLIENT_LOOKS 2 /* and the client sends the next one so much later */

struct gp_channel {
    unsigned left;
    void (*between)(void);
    const struct gp_header *message;
    const struct gp_header *wait;      /* NULL, or it comes behind each */
    uint64_t *number;                  /* in that */
    unsigned looks;                    /* since the GPU was told to write */
    struct null_counts at_wait;        /* when it was waited for a message first */
    struct gp_rep_cuMemAlloc_v2 reply; /* the last one */
};

static struct gpw_session session;
static struct gp_channel channel;
static struct gpw_output output;
static CUdeviceptr memory;

/* --- the transport ----------------------------------------------------------------------- */

static int null_send(struct gp_channel *c, const struct iovec *iov, int count, unsigned flags)
{
    (void)flags;
    size_t bytes = iov[0].iov_len < sizeof c->reply ? iov[0].iov_len : sizeof c->reply;
    null_must(count > 0, "an empty answer");
    memcpy(&c->reply, iov[0].iov_base, bytes);
    return 0;
}

/* The GPU writes after a while, and who has waited for that sends more after another. */
static bool is_under_way(struct gp_channel *c)
{
    if (!null_gpu.due.to)
        return false;
    if (++c->looks == GPU_LOOKS)
        *null_gpu.due.to = null_gpu.due.value;
    if (c->looks < GPU_LOOKS + CLIENT_LOOKS)
        return true;
    c->looks = 0;
    null_gpu.due.to = NULL;
    return false;
}

static int null_recv(struct gp_channel *c, int64_t timeout_us, const void **message, size_t *size)
{
    if (is_under_way(c))
        return -EAGAIN;
    if (c->left == 0) {
        if (timeout_us != 0) {
            c->at_wait = null_gpu.counts;
            session.ended = true;
        }
        return -EAGAIN;
    }
    c->left--;
    if (c->between)
        c->between();
    bool is_wait = c->wait && c->left % 2 == 0;
    if (is_wait)
        ++*c->number;
    *message = is_wait ? c->wait : c->message;
    *size = ((const struct gp_header *)*message)->size;
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

static void handle_all(const struct gp_header *h, unsigned count, void (*between)(void))
{
    channel.message = h;
    channel.left = count;
    channel.between = between;
    channel.reply.r.result = CUDA_SUCCESS;
    session.ended = false;
    gpw_loop_run(&session, idle);
    null_must(channel.left == 0, "the worker has ended the session");
    null_must(channel.reply.r.result == CUDA_SUCCESS, gp_op_info(h->op)->name);
}

static void handle(const struct gp_header *h, unsigned count, void (*between)(void))
{
    channel.wait = NULL;
    handle_all(h, count, between);
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
    null_must(gp_page_make(&page_fd, &bell_fd) == 0, "a page");
    struct gp_page *page = mmap(NULL, GP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd,
                                0);
    null_must(page != MAP_FAILED, "the arbiter's side of the page");
    page->version = GP_PAGE_VERSION;
    page->flags = GP_PAGE_HOLDS;
    page->check_at = page->alone_until[GP_BOARD_UPLOAD] = UINT64_MAX;
    page->alone_until[GP_BOARD_DOWNLOAD] = UINT64_MAX;
    page->granted = page->memory_limit = PLENTY;
    page->members = 1;
    null_must(gpw_gate_open(&session, 0, page_fd, bell_fd) == 0, "a seat");
    munmap(page, GP_PAGE_BYTES);
}

static CUdeviceptr allocate(uint64_t bytes)
{
    struct gp_req_cuMemAlloc_v2 q = {
        .h = {.size = sizeof q, .op = GP_OP_cuMemAlloc_v2, .flags = GP_FLAG_WAITED},
        .bytesize = bytes};
    handle(&q.h, 1, NULL);
    null_must(channel.reply.dptr != 0, "memory");
    return channel.reply.dptr;
}

void null_session_open(bool seat)
{
    struct gpw_session *s = &session;
    static const struct gpw_peers_at nowhere;
    *s = (struct gpw_session){.driver = &null_gpu_driver,
                              .transport = &transport,
                              .channel = &channel,
                              .output = &output,
                              .device_count = 1,
                              .greeted = true,
                              .strict_now = false};
    output.file = -1;
    s->handles = gpw_handles_new();
    null_must(s->handles && gpw_peers_open(s, &nowhere) == 0 && gpw_functions_open(s) == 0 &&
                  gpw_graphs_open(s) == 0 && gpw_host_functions_open(s) == 0 &&
                  gpw_memory_open(s) == 0 && gpw_modules_open(s) == 0,
              "the session");
    if (seat)
        take_seat();
    object(GP_HANDLE_CONTEXT, 1, (uint64_t)NULL_CONTEXT, false);
    object(GP_HANDLE_STREAM, 1, NULL_OBJECT, true);
    object(GP_HANDLE_EVENT, 1, NULL_OBJECT, true);
    uint64_t module = object(GP_HANDLE_MODULE, 1, NULL_OBJECT, true);
    object(GP_HANDLE_FUNCTION, 1, NULL_OBJECT, false);
    gpw_handle_bind(s, GP_HANDLE_FUNCTION, gp_handle_make(GP_HANDLE_FUNCTION, 1, 0), module, false,
                    0);
    null_must(gpw_memory_place(s, GP_WINDOW_BASE) == CUDA_SUCCESS, "addresses");
    memory = allocate(MEMORY_BYTES);
    static struct gpw_pinned pinned = {.address = PINNED_AT, .context = NULL_CONTEXT};
    static unsigned char bytes[4096];
    pinned.share = (struct gp_share){.addr = bytes, .size = sizeof bytes};
    s->memory->pinned = &pinned;
    s->memory->completions = (struct gpw_gpu_page){
        .share = {.addr = null_gpu.page, .size = sizeof null_gpu.page}, .open = true};
}

void null_session_behind(bool is_behind)
{
    null_gpu.behind = is_behind;
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
    m->launch.h = (struct gp_header){.size = sizeof m->launch + NULL_PARAMETERS * sizeof(uint64_t),
                                     .op = GP_OP_gp_launch};
    m->launch.function = gp_handle_make(GP_HANDLE_FUNCTION, 1, 0);
    m->launch.stream = stream;
    m->launch.grid_x = m->launch.grid_y = m->launch.grid_z = 1;
    m->launch.block_x = m->launch.block_y = m->launch.block_z = 1;
    m->launch.parameter_bytes = m->launch.n_parameters = NULL_PARAMETERS * sizeof(uint64_t);
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
        m->copy = (struct gp_req_gp_copy){{.size = sizeof m->copy, .op = GP_OP_gp_copy},
                                          kind == NULL_READ ? PINNED_AT + 64 : memory + 4096,
                                          memory,
                                          64,
                                          stream,
                                          0};
        break;
    }
}

struct null_counts null_session_run(enum null_kind kind, unsigned count, void (*between)(void))
{
    union message m;
    write_message(kind, &m);
    memset(&null_gpu.counts, 0, sizeof null_gpu.counts);
    handle(&m.h, count, between);
    null_must(!session.failures.kinds, "the messages fail");
    return channel.at_wait;
}

struct null_counts null_session_waits(bool signals, unsigned count, void (*between)(void))
{
    union message m;
    const uint64_t stream = gp_handle_make(GP_HANDLE_STREAM, 1, 0);
    struct gp_req_gp_stream_complete wait = {
        .h = {.size = sizeof wait, .op = GP_OP_gp_stream_complete, .flags = GP_FLAG_WAITED},
        .stream = stream,
        .place = 1};
    struct gp_req_gp_stream_signal signal = {
        .h = {.size = sizeof signal, .op = GP_OP_gp_stream_signal}, .stream = stream, .place = 1};
    write_message(NULL_LAUNCH, &m);
    memset(&null_gpu.counts, 0, sizeof null_gpu.counts);
    channel.wait = signals ? &signal.h : &wait.h;
    channel.number = signals ? &signal.number : &wait.number;
    handle_all(&m.h, 2 * count, between);
    null_must(!session.failures.kinds, "the messages fail");
    return channel.at_wait;
}

bool null_session_fence(enum null_kind kind, bool every)
{
    union message m;
    write_message(kind, &m);
    session.fences = every;
    session.stream_fences = 1;
    session.fenced = (CUstream)(uintptr_t)NULL_OBJECT;
    bool admitted = gpw_fences_admit(&session, &m.h);
    session.fences = session.stream_fences = 0;
    null_must(gpw_fences_admit(&session, &m.h), "what no fence holds back");
    return admitted;
}

struct null_counts null_session_churn(uint64_t bytes, unsigned count)
{
    memset(&null_gpu.counts, 0, sizeof null_gpu.counts);
    for (unsigned i = 0; i < count; i++) {
        struct gp_req_cuMemFree_v2 q = {.h = {.size = sizeof q, .op = GP_OP_cuMemFree_v2},
                                        .dptr = allocate(bytes)};
        handle(&q.h, 1, NULL);
    }
    null_must(!session.failures.kinds, "allocations fail");
    return channel.at_wait;
}
