/*
 * The whole worker: its loop, the dispatch, the handlers, the soft GPU and NCCL behind them, with
 * what its one client sends. Each step of an input is a message (draw_message.c); the fuzzer is
 * the transport. A step may also be what another worker says that this one is joined to
 * (fake_peer.c). Answers teach it addresses and nodes that it can name. Host functions of the
 * client end when this says so. An input is over when the worker has let go of the session, and
 * the process ends as a worker does.
 *
 * Beside what sanitizers see: no dead handle comes to the driver (GPUPOOL_SOFT_DEAD), no byte of
 * the worker's own comes back or is changed, no answer to what was not asked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "apart.h"
#include "budget.h"
#include "dispatch.h"
#include "draw.h"
#include "fake_client.h"
#include "fake_peer.h"
#include "function.h"
#include "gate.h"
#include "gp_ids.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "image_store.h"
#include "ipc.h"
#include "kept_images.h"
#include "loop.h"
#include "memory.h"
#include "module.h"
#include "operations.h"
#include "output.h"
#include "peer.h"
#include "pool.h"
#include "slices.h"
#include "steps.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOST_MEMORY ((uint64_t)64 << 20)

/* A worker gives nothing back: its end does. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0:handle_abort=1:quarantine_size_mb=16:malloc_context_size=12";
}

/* In the build that looks for races (docs/fuzzing.md). The process between has no thread of its
 * own, and its children end as they were told to. */
const char *__tsan_default_options(void);
__attribute__((disable_sanitizer_instrumentation)) /* it is asked before there is any */
const char *
__tsan_default_options(void)
{
    return "halt_on_error=1:die_after_fork=0:report_signal_unsafe=0:report_thread_leaks=0";
}

/* Streams that nothing orders race for a program's memory because the program says so: copies,
 * sets and waits for a value. What streams share beside that is looked at. */
const char *__tsan_default_suppressions(void);
__attribute__((disable_sanitizer_instrumentation)) const char *__tsan_default_suppressions(void)
{
    return "race:gpupool-soft-memory\nrace:^sg_copy_run$\nrace:^sg_set_run$\nrace:^value_reached$\n"
           "race:^write_value$\nrace:^sg_do_store$\nrace:^sg_do_load$\n";
}

static struct gpw_session session;
static struct gpw_driver driver;
static struct gpw_output output;

static void must(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "fuzz_worker: %s\n", what);
    abort();
}

static void session_open(struct gpw_session *s)
{
    char error[256];
    must(gpw_driver_open(&driver, FUZZ_DRIVER, error, sizeof error) == 0, "the driver");
    s->driver = &driver;
    must(driver.cuInit(0) == CUDA_SUCCESS, "cuInit");
    s->strict_now = true;
    gpw_strict(s, false);
    gpw_budget_open(s, GPW_BUDGET_HOST_MEMORY, HOST_MEMORY);
    s->handles = gpw_handles_new();
    for (unsigned i = 0; i < sizeof s->scratch / sizeof s->scratch[0]; i++)
        s->scratch[i] = malloc(GP_CHUNK_MAX);
    s->device_count = 2;
    s->devices[1] = 1;
    s->soft = true;
    s->nccl_path = FUZZ_NCCL;
    s->output = &output;
    output.file = -1;
    must(gpw_peers_open(s, &fake_peer_site) == 0, "its peers");
    must(gpw_ipc_open(s, "0123456789ab") == 0, "what it shares");
    const char *images = kept_images_make();
    must(images && gpw_image_store_open(s, images) == 0 && s->image_store, "kept images");
    must(gpw_functions_open(s) == 0 && gpw_graphs_open(s) == 0 && gpw_host_functions_open(s) == 0 &&
             gpw_memory_open(s) == 0 && gpw_modules_open(s) == 0,
         "the session");
    fake_client_open(s);
}

/* One message outside of the loop, which must succeed. */
static void ask(struct gpw_session *s, struct gp_header *h, uint16_t op, uint32_t size)
{
    h->op = op;
    h->size = (uint32_t)gp_align8(size);
    h->flags = GP_FLAG_WAITED;
    h->seq = fake_client_next_seq();
    must(gpw_dispatch(s, h) == 0 && !s->ended && fake_client_result() == 0, gp_op_info(op)->name);
    memset(h, 0, h->size);
}

static void greet(struct gpw_session *s, struct gp_header *h)
{
    struct gp_req_gp_hello *q = (void *)h;
    uint32_t at = sizeof *q;
    q->wire_newest = q->wire_oldest = GP_WIRE_VERSION;
    q->window_base = GP_WINDOW_BASE;
    q->operation_count = (uint32_t)(sizeof gp_operations / sizeof gp_operations[0]);
    q->n_secret = draw_append(h, &at, s->secret, sizeof s->secret);
    q->n_program = draw_append(h, &at, "fuzz", 5);
    q->n_operations = draw_append(h, &at, gp_operations, sizeof gp_operations);
    ask(s, h, GP_OP_gp_hello, at);
}

/* What every client has: contexts on both devices, an image, kernels, memory. */
static void furnish(struct gpw_session *s, struct gp_header *h)
{
    for (uint32_t i = 2; i-- > 0;) {
        struct gp_req_gp_primary_retain *q = (void *)h;
        uint64_t id = gp_handle_make(GP_HANDLE_CONTEXT, 1 + i, 0);
        q->context = id;
        q->dev = (CUdevice)i;
        ask(s, h, GP_OP_gp_primary_retain, sizeof *q);
        ((struct gp_req_gp_context_set *)h)->ctx = id;
        ask(s, h, GP_OP_gp_context_set, sizeof(struct gp_req_gp_context_set));
        draw_learn_handle(fake_client_draw(), id);
    }
    struct draw *d = fake_client_draw();
    static const uint16_t first[] = {
        GP_OP_gp_image_put,  GP_OP_gp_module_load,  GP_OP_gp_module_get_function,
        GP_OP_gp_image_put,  GP_OP_gp_library_load, GP_OP_gp_library_get_kernel,
        GP_OP_cuMemAlloc_v2, GP_OP_cuStreamCreate,  GP_OP_cuEventCreate};
    for (unsigned i = 0; i < sizeof first / sizeof first[0]; i++) {
        uint8_t step[] = {2, (uint8_t)first[i], (uint8_t)(first[i] >> 8)};
        draw_start(d, step, sizeof step);
        uint32_t size = draw_message(d, h, 0);
        ask(s, h, first[i], size);
    }
}

static bool idle(struct gpw_session *s)
{
    gpw_output_bound(s->output);
    gpw_pools_count(s);
    gpw_shareables_tick(s);
    return true;
}

static void run_session(const uint8_t *data, size_t size)
{
    must(gpw_output_open(&output) == 0, "the output");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* as the worker has it */
    fake_client_start(data, size);
    gpw_loop_run(&session, idle);
    must(fake_client_unharmed(), "memory of the worker's own has been changed");
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    setenv("GPUPOOL_SOFT_GPUS", "2", 1);
    setenv("GPUPOOL_SOFT_MEMORY", "64MiB", 1);
    setenv("GPUPOOL_SOFT_DEAD", "abort", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    struct gp_header *h = calloc(1, GP_MESSAGE_MAX);
    session_open(&session);
    greet(&session, h);
    furnish(&session, h);
    free(h);
    apart_open(run_session);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    apart_run(data, size);
    return 0;
}

const struct steps_form steps_form = {&draw_kinds, 1, 3};

size_t steps_begin(uint32_t chance, uint8_t out[8])
{
    uint16_t op = draw_requests[chance / 16 % draw_request_count].op;
    if (chance / 16 % 32 == 0)
        op = FAKE_PEER_STEP;
    out[0] = chance % 16 == 0 ? (uint8_t)(chance >> 8) : (uint8_t)(chance & 2);
    out[1] = (uint8_t)op;
    out[2] = (uint8_t)(op >> 8);
    return 3;
}
