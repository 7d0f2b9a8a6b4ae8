/*
 * gpupool-worker: one session. The server starts it; it opens the driver by
 * path, listens, prints one line `ready {…}`, serves the one client that knows
 * the secret, and ends with it. It belongs to no server: it lives on when the
 * server stops, and any later server finds it by its control socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "activity.h"
#include "budget.h"
#include "capture_watch.h"
#include "closed_memory.h"
#include "control.h"
#include "filter.h"
#include "function.h"
#include "gate.h"
#include "graph.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "held.h"
#include "host_function.h"
#include "image_store.h"
#include "ipc.h"
#include "leave.h"
#include "loop.h"
#include "memory.h"
#include "module.h"
#include "nccl.h"
#include "output.h"
#include "peer.h"
#include "pool.h"
#include "quota.h"
#include "slices.h"
#include "tell.h"
#include "transport/shm_give.h"

#define ACCEPT_TIMEOUT_MS 10000
#define LISTENERS_MAX 4
/* A client comes at one of several places: while the others are waited at, it waits as well. It has
 * hardly ever not come within a second. */
#define SEVERAL_STEP_MS 1
#define SEVERAL_LATE_STEP_MS 5

struct options {
    const char *session, *driver, *control, *devices, *plugins, *cupti, *nccl, *images;
    const char *listen[LISTENERS_MAX];
    unsigned listen_count;
    const char *peer_host;
    const char *control_fd; /* handed in: a listening socket; NULL: it is made at `control` */
    struct {
        int page, bell;
    } seats[GP_DEVICES_MAX]; /* of the devices, in their order */
    unsigned seat_count;
    bool alone;                    /* it speaks to its client and to no other worker */
    uint64_t budgets[GPW_BUDGETS]; /* limits; 0: none */
};

static int usage(const char *problem)
{
    fprintf(stderr,
            "gpupool-worker: %s\nusage: gpupool-worker --session ID --driver PATH --listen URL "
            "[--listen tls://HOST:PORT?fd=N] [--listen ucx://HOST:PORT?fd=N] --control PATH "
            "[--devices 0,1] [--seat PAGE,BELL …] "
            "[--budget NAME=N …] [--plugins DIR] [--peer-host HOST] [--cupti PATH] [--nccl PATH] "
            "[--control-fd FD] [--alone] [--images DIR] "
            "[--log-level LEVEL]\n"
            "(gpupool-server starts workers; the secret comes on stdin)\n",
            problem);
    return 2;
}

/* Where an option that is a text alone belongs; NULL: it is more. */
static const char **text_option(struct options *o, int option)
{
    switch (option) {
    case 's':
        return &o->session;
    case 'd':
        return &o->driver;
    case 'c':
        return &o->control;
    case 'C':
        return &o->control_fd;
    case 'n':
        return &o->devices;
    case 'p':
        return &o->plugins;
    case 'P':
        return &o->peer_host;
    case 'u':
        return &o->cupti;
    case 'N':
        return &o->nccl;
    case 'i':
        return &o->images;
    default:
        return NULL;
    }
}

/* The numbers of two descriptors that the server has handed in. */
static int read_seat(struct options *o, const char *text)
{
    if (o->seat_count == GP_DEVICES_MAX ||
        sscanf(text, "%d,%d", &o->seats[o->seat_count].page, &o->seats[o->seat_count].bell) != 2)
        return -1;
    o->seat_count++;
    return 0;
}

static int read_options(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {
        {"session", required_argument, NULL, 's'},    {"driver", required_argument, NULL, 'd'},
        {"listen", required_argument, NULL, 'l'},     {"control", required_argument, NULL, 'c'},
        {"devices", required_argument, NULL, 'n'},    {"plugins", required_argument, NULL, 'p'},
        {"log-level", required_argument, NULL, 'v'},  {"seat", required_argument, NULL, 'b'},
        {"peer-host", required_argument, NULL, 'P'},  {"budget", required_argument, NULL, 'B'},
        {"control-fd", required_argument, NULL, 'C'}, {"alone", no_argument, NULL, 'A'},
        {"cupti", required_argument, NULL, 'u'},      {"nccl", required_argument, NULL, 'N'},
        {"images", required_argument, NULL, 'i'},     {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        const char **text = text_option(o, option);
        if (text) {
            *text = optarg;
        } else if (option == 'A') {
            o->alone = true;
        } else if (option == 'b') {
            if (read_seat(o, optarg) != 0)
                return usage("--seat is none, or one too many");
        } else if (option == 'l') {
            if (o->listen_count == LISTENERS_MAX)
                return usage("too many --listen");
            o->listen[o->listen_count++] = optarg;
        } else if (option == 'B') {
            if (gpw_budget_parse(optarg, o->budgets) != 0)
                return usage("--budget is not NAME=N with the name of a budget");
        } else if (option != 'v') { /* the server filters */
            return usage("unknown option");
        }
    }
    if (!o->session || !o->driver || !o->control || !o->listen_count)
        return usage("--session, --driver, --listen and --control are needed");
    return 0;
}

static void take_hex(const char *text, uint8_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
}

/* 32 hexadecimal digits on stdin, and 64 more where there is a key for peers: neither a
 * command nor an environment is a place for a secret, as /proc shows both for as long as
 * the process lives. */
static int take_secret(uint8_t secret[16], struct gpw_peers_at *peers)
{
    char text[97] = "";
    size_t got = 0;
    ssize_t n;
    while (got < 96 && (n = read(STDIN_FILENO, text + got, 96 - got)) > 0)
        got += (size_t)n;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0)
        close(nothing);
    if ((got != 32 && got != 96) || strspn(text, "0123456789abcdef") != got)
        return -1;
    take_hex(text, secret, 16);
    peers->has_key = got == 96;
    if (peers->has_key)
        take_hex(text + 32, peers->key, sizeof peers->key);
    explicit_bzero(text, sizeof text);
    return 0;
}

/* Which of the driver's devices this session shows, in the order given. */
static int choose_devices(struct gpw_session *s, const char *wanted)
{
    int count = 0;
    s->driver->cuDeviceGetCount(&count);
    if (!wanted || !*wanted) {
        for (int i = 0; i < count && s->device_count < GP_DEVICES_MAX; i++)
            s->devices[s->device_count++] = i;
        return 0;
    }
    for (const char *at = wanted; *at;) {
        char *end;
        long ordinal = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || ordinal < 0 || ordinal >= count ||
            s->device_count == GP_DEVICES_MAX) {
            gpw_log("error", "--devices %s: the driver has %d device(s)", wanted, count);
            return -1;
        }
        s->devices[s->device_count++] = (CUdevice)ordinal;
        at = *end ? end + 1 : end;
    }
    return 0;
}

static bool is_soft(struct gpw_session *s)
{
    char name[256] = "";
    return s->device_count &&
           s->driver->cuDeviceGetName(name, sizeof name, s->devices[0]) == CUDA_SUCCESS &&
           strstr(name, "soft GPU");
}

static int take_seats(struct gpw_session *s, const struct options *o)
{
    if (o->seat_count && o->seat_count != s->device_count) {
        gpw_log("error", "%u --seat for %u device(s)", o->seat_count, s->device_count);
        return -1;
    }
    for (unsigned i = 0; i < o->seat_count; i++)
        if (gpw_gate_open(s, i, o->seats[i].page, o->seats[i].bell) != 0)
            return -1;
    return 0;
}

/* Where the client may come in. */
struct listeners {
    const struct gp_transport *transport[LISTENERS_MAX];
    struct gp_listener *listener[LISTENERS_MAX];
    unsigned count;
};

static int listeners_open(struct listeners *l, const struct options *o, struct gpw_control *control)
{
    struct gp_error err = {""};
    for (unsigned i = 0; i < o->listen_count; i++) {
        const struct gp_transport *t = gp_transport_find(o->listen[i], o->plugins, &err);
        if (!t || t->listen(o->listen[i], &l->listener[l->count], &err) != 0) {
            gpw_log("error", "cannot listen at %s: %s", o->listen[i], err.text);
            return -1;
        }
        if (strcmp(o->listen[i], SHM_HANDED) == 0)
            gpw_control_clients_to(control, l->listener[l->count]);
        l->transport[l->count++] = t;
    }
    printf("ready {");
    for (unsigned i = 0; i < l->count; i++)
        printf("%s\"%s\": \"%s\"", i ? ", " : "", l->transport[i]->name,
               l->transport[i]->listener_url(l->listener[i]));
    printf("}\n");
    fflush(stdout);
    return 0;
}

static int listeners_wait(struct listeners *l, struct gpw_session *s)
{
    struct gp_error err = {""};
    for (int waited = 0; waited < ACCEPT_TIMEOUT_MS && !gpw_control_stopped(s->control);) {
        for (unsigned i = 0; i < l->count; i++) {
            int step = l->count == 1 ? 50 : waited < 1000 ? SEVERAL_STEP_MS : SEVERAL_LATE_STEP_MS;
            waited += step;
            int r = l->transport[i]->accept(l->listener[i], step, &s->channel, &err);
            if (r == 0) {
                s->transport = l->transport[i];
                return 0;
            }
            if (r != -EAGAIN)
                gpw_log("warn", "a connection over %s failed: %s", l->transport[i]->name, err.text);
        }
    }
    gpw_log("warn", "no client came within %d s", ACCEPT_TIMEOUT_MS / 1000);
    return -1;
}

static void listeners_close(struct listeners *l, struct gpw_control *control)
{
    gpw_control_clients_to(control, NULL);
    for (unsigned i = 0; i < l->count; i++)
        l->transport[i]->listener_close(l->listener[i]);
    l->count = 0;
}

static int session_open(struct gpw_session *s, const struct options *o)
{
    char error[512];
    if (gpw_driver_open(s->driver, o->driver, error, sizeof error) != 0) {
        gpw_log("error", "%s", error);
        return -1;
    }
    CUresult r = s->driver->cuInit(0);
    if (r != CUDA_SUCCESS) {
        gpw_log("error", "the driver %s does not start: CUDA error %d", o->driver, (int)r);
        return -1;
    }
    s->strict_now = true; /* as a thread of CUDA's begins */
    gpw_strict(s, false);
    gpw_capture_watch_open(s);
    s->handles = gpw_handles_new();
    for (unsigned i = 0; i < sizeof s->scratch / sizeof s->scratch[0]; i++)
        if (!(s->scratch[i] = malloc(GP_CHUNK_MAX)))
            return -1;
    if (!s->handles || choose_devices(s, o->devices) != 0 || take_seats(s, o) != 0)
        return -1;
    s->soft = is_soft(s);
    gpw_slices_open(s);
    gpw_held_open(s);
    if (gpw_functions_open(s) != 0 || gpw_graphs_open(s) != 0 || gpw_host_functions_open(s) != 0)
        return -1;
    if (gpw_memory_open(s) != 0 || gpw_modules_open(s) != 0)
        return -1;
    return gpw_image_store_open(s, o->images);
}

static bool idle(struct gpw_session *s)
{
    gpw_gate_tick(s);
    gpw_output_bound(s->output);
    gpw_pools_count(s);
    gpw_shareables_tick(s);
    /* about once a second; NVML takes its time, which work in flight would have to wait
     * for, so then only every tenth time, unless something says that it may be over */
    bool look = s->ticks % 5 == 0 && (!gpw_gate_busy(s) || s->ticks % 50 == 0);
    for (uint32_t i = 0; i < s->device_count; i++)
        if (look || gpw_quota_is_doubtful(s, i))
            gpw_quota_enforce(s, i);
    gpw_host_functions_look(s);
    gpw_nccl_tick(s);
    s->ticks++;
    gpw_activity_bring(s);
    bool stopped = gpw_control_stopped(s->control);
    if (stopped)
        gpw_log("info", "told to stop");
    char said[512];
    if (gpw_control_said(s->control, said, sizeof said) && s->greeted)
        gpw_notify_gp_said(s, stopped, (uint32_t)strlen(said), said);
    return !stopped;
}

/* All of this process's state; what follows from a session is in its own. */
struct worker {
    struct gpw_session session;
    struct gpw_driver driver;
    struct gpw_control control;
    struct gpw_output output;
    struct listeners listeners;
};

/* As installed: libexec/ beside lib/. */
static void find_plugins(struct options *o, char *path, size_t size)
{
    if (!o->plugins)
        o->plugins = getenv("GPUPOOL_PLUGINS");
    if (o->plugins && *o->plugins)
        return;
    ssize_t n = readlink("/proc/self/exe", path, size - 32);
    path[n > 0 ? n : 0] = '\0';
    strcat(dirname(path), "/../lib/plugins");
    o->plugins = path;
}

static void prepare_process(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);         /* a limit on files is an error, not an end */
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: the gate sleeps for microseconds */
    struct rlimit files;              /* shares, and memory of the soft GPU, are descriptors */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* From the client's coming to its end. */
static int serve_client(struct worker *w)
{
    struct gpw_session *s = &w->session;
    listeners_close(&w->listeners, s->control);
    int r = gpw_leave_watch(s);
    if (r == 0)
        gpw_loop_run(s, idle);
    gpw_leave_begin(s);
    gpw_peers_close(s);
    s->transport->close(s->channel);
    gpw_image_store_leave(s);
    return r == 0 ? 0 : 1;
}

static int serve(struct worker *w, const struct options *o)
{
    struct gpw_session *s = &w->session;
    s->driver = &w->driver;
    s->control = &w->control;
    s->output = &w->output;
    s->cupti = o->cupti;
    s->nccl_path = o->nccl;
    struct gpw_peers_at at = {.listen = o->listen,
                              .listen_count = o->listen_count,
                              .plugins = o->plugins,
                              .host = o->peer_host};
    if (take_secret(s->secret, &at) != 0)
        return usage("stdin does not have the secret, 32 or 96 hexadecimal digits");
    if (gpw_peers_open(s, &at) != 0 || gpw_ipc_open(s, o->session) != 0)
        return 1;
    for (unsigned i = 0; i < GPW_BUDGETS; i++) /* of which the control thread tells */
        gpw_budget_open(s, (enum gpw_budget)i, o->budgets[i]);
    if (gpw_control_open(s->control, o->control, o->control_fd, o->session, s) != 0 ||
        listeners_open(&w->listeners, o, s->control) != 0)
        return 1;
    if (gpw_tell_open(s) != 0 || gpw_output_open(s->output) != 0) {
        gpw_log("error", "cannot redirect the output of kernels: %m");
        return 1;
    }
    int r = 1;
    if (session_open(s, o) == 0 && listeners_wait(&w->listeners, s) == 0)
        r = serve_client(w);
    gpw_control_close(s->control);
    gpw_gate_close(s);
    return r;
}

/* Over what this worker could listen here, for a server that asks before it starts one; over UCX
 * only if the server says where that is. */
static void transports_say(struct options *o)
{
    static const char *const schemes[] = {"shm://", "tls://", "tcp://", "ucx://"};
    char plugins[4096];
    struct gp_error err;
    find_plugins(o, plugins, sizeof plugins);
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        if (strcmp(schemes[i], "ucx://") == 0 && !getenv("GPUPOOL_UCX_LIBRARY"))
            continue;
        const struct gp_transport *t = gp_transport_find(schemes[i], o->plugins, &err);
        if (t)
            printf("%s\n", t->name);
        else
            fprintf(stderr, "%s\n", err.text);
    }
}

int main(int argc, char **argv)
{
    struct options o = {0};
    if (argc == 2 && strcmp(argv[1], "--transports") == 0) {
        transports_say(&o);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) { /* the server compares */
        printf("gpupool-worker %s wire %u spec %016" PRIx64 " oldest %u\n", GPUPOOL_VERSION,
               GP_WIRE_VERSION, GP_SPEC_HASH, GP_WIRE_OLDEST);
        return 0;
    }
    int r = read_options(argc, argv, &o);
    if (r != 0)
        return r;
    char plugins[4096];
    find_plugins(&o, plugins, sizeof plugins);
    prepare_process();
    if (gp_memory_close() != 0) {
        gpw_log("error", "the worker's memory cannot be closed to other processes: %m");
        return 1;
    }
    if (gp_filter_narrow(!o.alone) != 0) {
        gpw_log("error", "the filter of system calls cannot be narrowed: %m");
        return 1;
    }
    struct worker *w = calloc(1, sizeof *w);
    /* No call of the driver on the way out, not even for what waits: it gives back the GPU
     * when the process ends, faster than piece by piece, and without waiting for kernels
     * and streams that may never finish. Threads use what is in `w` until then. */
    _exit(w ? serve(w, &o) : 1);
}
