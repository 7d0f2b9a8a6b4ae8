/*
 * Opening the sessions: each server of GPUPOOL_SERVER is asked for a worker, connected
 * to and greeted, one after the other, because each one's devices are numbered, and
 * have their addresses, behind those of the one before.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "front_end.h"
#include "gp_ids.h"
#include "gpc_wire.h"
#include "memory.h"
#include "message.h"
#include "operations_there.h"
#include "pci.h"
#include "peer_link.h"
#include "servers.h"
#include "sessions.h"
#include "snapshot_check.h"
#include "transport/standard_fds.h"
#include "visible.h"

#define CONNECT_TIMEOUT_MS 30000 /* as the server */
/* Of CUDA_VISIBLE_DEVICES, for a server: more than any lease has on a host. */
#define INDICES_MOST 200

/* The server offers tcp, any host, two ports: the host is where we reached it. */
void gpc_fill_host(const char *offered, const char *server, char *out, size_t size)
{
    const char *star = strstr(offered, "//*");
    const char *host = strstr(server, "//");
    if (!star || !host) {
        snprintf(out, size, "%s", offered);
        return;
    }
    host += 2;
    const char *colon = strrchr(host, ':');
    int length = colon ? (int)(colon - host) : (int)strlen(host);
    snprintf(out, size, "%.*s%.*s%s", (int)(star + 2 - offered), offered, length, host, star + 3);
}

static bool connect_to(struct gpc_session *s, const char *url, const char *plugins,
                       struct gp_error *err)
{
    s->transport = gp_transport_find(url, plugins, err);
    if (!s->transport)
        return false;
    struct gp_standard_fds standard;
    gp_standard_fds_hold(&standard);
    int rc = s->transport->connect(url, CONNECT_TIMEOUT_MS, &s->channel, err);
    gp_standard_fds_release(&standard);
    return rc == 0;
}

/* What GPUPOOL_TRANSPORT allows. */
struct ways {
    bool shm, tcp, zmq, ucx;
};

/* An earlier release offers zmq alone, which `tcp` meant then, and means there. UCX is taken by
 * who asks for it: it is a library of others in the program's process, and does not encrypt. */
static bool read_ways(struct ways *w, struct gp_error *err)
{
    const char *allowed = getenv("GPUPOOL_TRANSPORT");
    bool any = !allowed || !*allowed || strcmp(allowed, "auto") == 0;
    w->shm = any || strcmp(allowed, "shm") == 0;
    w->tcp = any || strcmp(allowed, "tcp") == 0;
    w->zmq = w->tcp || strcmp(allowed, "zmq") == 0;
    w->ucx = !any && strcmp(allowed, "ucx") == 0;
    bool known = w->shm || w->zmq || w->ucx;
    if (!known)
        gp_error_set(err, "GPUPOOL_TRANSPORT=%.64s: must be auto, shm, tcp, zmq or ucx", allowed);
    return known;
}

static const char SOCKET[] = "unix://";

/* The path of the socket that the server is asked at; NULL: it is asked over a network. */
static const char *socket_of(const struct gpc_session *s)
{
    bool local = strncmp(s->server, SOCKET, strlen(SOCKET)) == 0;
    return local ? s->server + strlen(SOCKET) : NULL;
}

/* Where the worker is met. A server that is asked at its socket gives shared memory there, by
 * whatever path this process sees it: containers may have it elsewhere. */
static void shared_way(const struct gpc_session *s, const struct gpc_admission *a, char *out,
                       size_t size)
{
    const char *path = socket_of(s), *door = strchr(a->shm, '?');
    if (path && door)
        snprintf(out, size, "shm://%s%s", path, door);
    else
        snprintf(out, size, "%s", a->shm);
}

/* Whoever is asked at a socket is; its machine's id may be hidden in a container. */
static bool on_this_machine(const struct gpc_session *s, const struct gpc_admission *a)
{
    char boot[64];
    gpc_boot_id(boot);
    return socket_of(s) || (boot[0] && strcmp(boot, a->boot_id) == 0);
}

/* A socket does not say under which name its server's host is reached. */
static bool is_reachable(const struct gpc_session *s, const char *offered)
{
    return offered[0] && !(socket_of(s) && strstr(offered, "//*"));
}

/* A client without OpenSSL has no tcp. One whose server is this machine's will hardly need it,
 * and does not load it to find out. */
static bool has_tcp(const struct gpc_session *s, struct ways w, const char *plugins)
{
    static const char loopback[] = "tcp://127.";
    bool beside = socket_of(s) || strncmp(s->server, loopback, strlen(loopback)) == 0;
    struct gp_error why;
    return w.tcp && ((beside && w.shm) || gp_transport_find("tls://", plugins, &why));
}

#define WAYS_MOST 4
#define WAY_BYTES 512

/* The addresses to try, the fastest first; how many. Shared memory only with a server on this
 * machine. */
static unsigned list_ways(const struct gpc_session *s, const struct gpc_admission *a, struct ways w,
                          char urls[WAYS_MOST][WAY_BYTES])
{
    unsigned count = 0;
    if (w.shm && a->shm[0] && on_this_machine(s, a))
        shared_way(s, a, urls[count++], WAY_BYTES);
    if (w.tcp && is_reachable(s, a->tcp))
        gpc_fill_host(a->tcp, s->server, urls[count++], WAY_BYTES);
    if (w.zmq && is_reachable(s, a->zmq))
        gpc_fill_host(a->zmq, s->server, urls[count++], WAY_BYTES);
    if (w.ucx && is_reachable(s, a->ucx))
        gpc_fill_host(a->ucx, s->server, urls[count++], WAY_BYTES);
    return count;
}

static bool connect_worker(struct gpc_session *s, const struct gpc_admission *a, struct ways w,
                           const char *plugins, struct gp_error *err)
{
    char urls[WAYS_MOST][WAY_BYTES];
    unsigned count = list_ways(s, a, w, urls);
    if (count == 0 && w.ucx)
        gp_error_set(err,
                     "GPUPOOL_TRANSPORT=ucx, but %s does not offer it: its setting 'ucx' allows "
                     "that, and its log says what it lacks",
                     s->server);
    else if (count == 0 && !w.zmq)
        gp_error_set(err, "GPUPOOL_TRANSPORT=shm, but %s is not on this machine", s->server);
    else if (count == 0)
        gp_error_set(err, "%s offers no network transport", s->server);
    for (unsigned i = 0; i < count; i++) {
        if (connect_to(s, urls[i], plugins, err))
            return true;
        if (i + 1 < count)
            gpc_log(GPC_LOG_INFO, "not over %.*s:// with %s (%s); trying %.*s://",
                    (int)strcspn(urls[i], ":"), urls[i], s->server, err->text,
                    (int)strcspn(urls[i + 1], ":"), urls[i + 1]);
    }
    return false;
}

/* What the worker's answer to the greeting is made of. */
struct greeting {
    uint32_t known[GP_OPERATIONS_MAX];
    uint64_t snapshot[GP_SNAPSHOT_MAX / 8];
    uint32_t known_bytes, snapshot_bytes;
};

/* First message: show the secret, get everything that can be known beforehand. */
static CUresult greet(struct gpc_session *s, const struct gpc_admission *a, struct greeting *g)
{
    const struct gpc_route on = gpc_route_to(s);
    return gpc_wire_gp_hello_on(&on, GP_WIRE_VERSION, GP_WIRE_OLDEST, (uint32_t)getpid(), s->index,
                                s->window_begin, GP_OPERATIONS, 0, a->secret,
                                program_invocation_short_name, gp_operations, "", &s->wire,
                                g->known, g->snapshot, &g->known_bytes, &g->snapshot_bytes);
}

/* Every device of the process has a PCI address of its own: where a host has one that
 * an earlier host has, too, the domain is changed. */
static void tell_apart(struct gpc_session *s)
{
    for (uint32_t i = 0; i < s->snapshot->device_count; i++) {
        struct gp_device_info *d = &s->snapshot->devices[i];
        struct gpc_pci own;
        if (!gpc_pci_read(d->pci_bus_id, &own))
            continue;
        struct gpc_pci taken[GP_DEVICES_MAX];
        unsigned count = 0;
        for (CUdevice before = 0; before < s->first; before++)
            if (gpc_pci_read(gpc_device_info(before)->pci_bus_id, &taken[count]))
                count++;
        unsigned domain = gpc_pci_free_domain(&own, taken, count, s->index);
        if (domain == own.domain)
            continue;
        own.domain = domain;
        gpc_pci_write(&own, d->pci_bus_id, sizeof d->pci_bus_id);
        d->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = (int32_t)domain;
    }
}

/* Managed memory is this library's, on whatever the GPU's host has. */
static void say_managed(struct gpc_session *s)
{
    for (uint32_t i = 0; i < s->snapshot->device_count; i++) {
        struct gp_device_info *d = &s->snapshot->devices[i];
        d->attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = d->window_begin != d->window_end;
        d->attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 0;
        d->attributes[CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST] = 0;
        d->attributes[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS] = 0;
        d->attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 0;
        d->attributes[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES] = 0;
    }
}

/* What the worker says must be possible, and fit to what the others said. */
static const char *check_snapshot(struct gpc_session *s, uint64_t base, const struct greeting *g)
{
    const char *wrong = gpc_snapshot_read(g->snapshot, g->snapshot_bytes, s->snapshot);
    if (wrong)
        return wrong;
    uint32_t count = s->snapshot->device_count;
    if (count > GP_DEVICES_MAX - (uint32_t)s->first)
        return "the servers have more than 64 devices between them";
    s->window_begin = s->window_end = base;
    for (uint32_t i = 0; i < count; i++) {
        const struct gp_device_info *d = &s->snapshot->devices[i];
        if (s->index == 0) { /* alone, it may have them where it likes */
            s->window_begin = d->window_begin < s->window_begin || i == 0 ? d->window_begin
                                                                          : s->window_begin;
            s->window_end = d->window_end > s->window_end || i == 0 ? d->window_end : s->window_end;
        } else if (d->window_begin != base + i * GP_WINDOW_SIZE ||
                   d->window_end != d->window_begin + GP_WINDOW_SIZE) {
            return "its devices' addresses are not where this client wants them";
        } else {
            s->window_end = d->window_end;
        }
    }
    for (unsigned i = 0; i < s->index; i++) {
        const struct gpc_session *o = gpc_session_at(i);
        if (count && s->window_begin < o->window_end && o->window_begin < s->window_end)
            return "its devices' addresses are another server's";
    }
    return gpc_windows_keep(s);
}

static CUresult fail(const char *why)
{
    gpc_log(GPC_LOG_ERROR, "%s", why);
    return CUDA_ERROR_NO_DEVICE;
}

/* Give up a session that is connected. */
static void close_session(struct gpc_session *s)
{
    gpc_session_goodbye(s);
    s->transport->close(s->channel);
    free(s->snapshot);
    s->snapshot = NULL;
    s->transport = NULL;
}

/* Where the next session's devices begin: behind those of the one before. */
static uint64_t place_behind(struct gpc_session *s)
{
    uint64_t base = GP_WINDOW_BASE;
    s->first = 0;
    for (unsigned i = 0; i < s->index; i++) {
        const struct gpc_session *o = gpc_session_at(i);
        s->first = o->first + (CUdevice)o->snapshot->device_count;
        if (o->window_end > base)
            base = o->window_end;
    }
    return base;
}

/* Slow results are taken for a fault, and figures for those of a GPU: so it is said, once. */
static void say_simulated(const char *server)
{
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gpc_log(GPC_LOG_WARN,
                "the GPUs of %s are simulated on its CPU, slowly: it has found no "
                "CUDA driver with a GPU (its log says more)",
                server);
}

/* What was asked for and changes nothing there: who asks for it should know, once. */
static void say_note(const char *server, const char *note)
{
    static bool said;
    if (note[0] && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gpc_log(GPC_LOG_WARN, "%s: %s", server, note);
}

/* The end of a worker on this machine is noticed at once, whatever was asked for. */
static void say_unused(const struct gpc_session *s)
{
    static bool said;
    const char *silence = getenv("GPUPOOL_SILENCE");
    if (silence && *silence && gpc_session_shares(s) &&
        !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gpc_log(GPC_LOG_WARN,
                "GPUPOOL_SILENCE=%.40s changes nothing: %s is reached over shared memory, where a "
                "worker's end is noticed at once",
                silence, s->server);
}

/* Greet the worker and take its answer. `*wrong`: what about it cannot be. */
static CUresult greet_worker(struct gpc_session *s, const struct gpc_admission *a,
                             const char **wrong)
{
    uint64_t base = s->window_begin = place_behind(s);
    struct greeting *g = calloc(1, sizeof *g);
    s->snapshot = calloc(1, GP_SNAPSHOT_MAX);
    CUresult r = g && s->snapshot ? greet(s, a, g) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && !(*wrong = gpc_operations_take(s, g->known, g->known_bytes)))
        *wrong = check_snapshot(s, base, g);
    free(g);
    return r;
}

/* What a server may know of CUDA_VISIBLE_DEVICES: indices alone, of its own devices. */
static const char *indices(const char *visible, unsigned servers)
{
    size_t length = visible ? strlen(visible) : 0;
    bool plain = length && length <= INDICES_MOST && strspn(visible, "0123456789,") == length;
    return plain && servers == 1 ? visible : NULL;
}

/* `*visible` is NULL behind it if the server has shown no more than that. */
static CUresult open_one(struct gpc_session *s, const char *token, unsigned servers, bool sync,
                         const char **visible)
{
    char plugins[4096], why[1024];
    gpc_plugin_folder(gpc_sessions_goodbye, plugins, sizeof plugins);
    struct gpc_admission a;
    struct ways ways;
    struct gp_error err = {""};
    if (!read_ways(&ways, &err)) /* before there is a session that nobody comes to */
        return fail(err.text);
    ways.tcp = has_tcp(s, ways, plugins);
    if (ways.ucx && !gp_transport_find("ucx://", plugins, &err))
        return fail(err.text);
    const struct gpc_reach reach = {ways.shm, ways.tcp, ways.zmq,
                                    ways.ucx, servers,  indices(*visible, servers)};
    CUresult r = gpc_front_end_ask(s->server, token, &reach, plugins, &a, why, sizeof why);
    if (r != CUDA_SUCCESS) {
        gpc_log(GPC_LOG_ERROR, "%s", why);
        return r;
    }
    if (a.visible && reach.visible)
        *visible = NULL;
    memcpy(s->id, a.session, sizeof s->id);
    s->server[strcspn(s->server, "?")] = '\0'; /* for messages; its key has been of use */
    if (!connect_worker(s, &a, ways, plugins, &err))
        return fail(err.text);
    gpc_session_start(s, sync);
    const char *wrong = NULL;
    r = greet_worker(s, &a, &wrong);
    if (r == CUDA_SUCCESS && !wrong) {
        tell_apart(s);
        say_managed(s);
        gpc_sessions_set_count(s->index + 1);
        gpc_memory_open(s);
    }
    if (r == CUDA_SUCCESS && !wrong) {
        gpc_log(GPC_LOG_INFO, "session %s on %s over %s, %u device%s", s->id, s->server,
                s->transport->name, s->snapshot->device_count,
                s->snapshot->device_count == 1 ? "" : "s");
        if (a.simulated)
            say_simulated(s->server);
        say_note(s->server, a.note);
        say_unused(s);
        return CUDA_SUCCESS;
    }
    if (wrong)
        gpc_log(GPC_LOG_ERROR,
                "%s: its worker's greeting cannot be used: %s; install the same "
                "release of gpupool on both sides",
                s->server, wrong);
    else
        gpc_log(GPC_LOG_ERROR,
                "%s: the worker refused the session (CUDA error %d); is this "
                "client of the server's version?",
                s->server, (int)r);
    close_session(s);
    return r == CUDA_SUCCESS ? CUDA_ERROR_NO_DEVICE : r;
}

/* What is left of the devices, or why there is none. */
static CUresult show(const char *visible)
{
    uint32_t all = gpc_device_count();
    CUresult r = gpc_sessions_show(visible);
    if (r != CUDA_SUCCESS)
        gpc_log(GPC_LOG_WARN,
                "CUDA_VISIBLE_DEVICES=%.80s names %s the %u devices, so there is none", visible,
                r == CUDA_ERROR_INVALID_DEVICE ? "twice one of" : "none of", all);
    return r;
}

CUresult gpc_sessions_open(void)
{
    const char *sync = getenv("GPUPOOL_SYNC");
    char why[GPC_SERVERS_WHY];
    struct gpc_servers list;
    if (gpc_servers_of_environment(&list, why, sizeof why) != 0)
        return fail(why);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    gpc_sessions_show(NULL);
    CUresult r = visible && gpc_visible_nothing(visible) ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
    for (uint32_t i = 0; i < list.count && r == CUDA_SUCCESS; i++) {
        struct gpc_session *s = gpc_session_at(i);
        memset(s, 0, sizeof *s);
        s->index = i;
        memcpy(s->server, list.server[i], sizeof s->server);
        r = open_one(s, list.token[i], list.count, sync && strcmp(sync, "1") == 0, &visible);
    }
    gpc_servers_free(&list);
    if (r == CUDA_SUCCESS && visible)
        r = show(visible);
    if (r == CUDA_SUCCESS)
        return r;
    for (unsigned open = gpc_session_count(); open-- > 0;)
        close_session(gpc_session_at(open));
    gpc_sessions_set_count(0);
    return r;
}

void gpc_session_goodbye(struct gpc_session *s)
{
    if (!gpc_session_works(s))
        return;
    /* a thread that still runs may hold the lock for ever: give it a moment */
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 100000000;
    if (soon.tv_nsec >= 1000000000) {
        soon.tv_sec++;
        soon.tv_nsec -= 1000000000;
    }
    if (pthread_mutex_timedlock(&s->submit_lock, &soon) != 0)
        return;
    __atomic_store_n(&s->leaving, true, __ATOMIC_RELAXED);
    struct gp_req_gp_goodbye q = {.h = {.op = GP_OP_gp_goodbye, .seq = ++s->last_seq}};
    gpc_message_send(s, &q.h, sizeof q, NULL, 0, 0);
    s->transport->flush(s->channel);
    if (s->transport->leave)
        s->transport->leave(s->channel);
    pthread_mutex_unlock(&s->submit_lock);
}

void gpc_sessions_goodbye(void)
{
    for (unsigned i = 0; i < gpc_session_count(); i++)
        gpc_session_goodbye(gpc_session_at(i));
}
