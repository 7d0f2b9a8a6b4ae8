/*
 * The session: opened by cuInit, one submission order, answers dealt to the
 * threads that wait for them.
 *
 * Two locks. `submit_lock` is held while a message is given its number and put
 * into the channel: that is the program's order. `wait_lock` guards the list of
 * waiting calls and the right to read: whichever waiting thread finds nobody
 * reading reads for all of them (`reading`), so a lone thread gets its answer
 * without waking anybody. Neither lock is held while a thread blocks in recv.
 */
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "front_door.h"
#include "gpc_wire.h"
#include "handle.h"
#include "memory.h"
#include "process.h"
#include "stats.h"

#define CONNECT_TIMEOUT_MS 10000
#define SMALL_MESSAGE 2048

static struct gpc_session session;
static struct gpc_session *open_session; /* NULL unless open */
static bool sync_mode;

static pthread_mutex_t submit_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_seq;
static CUcontext wire_context;  /* what the worker has current */
static uint32_t wire_capture_mode;

static pthread_mutex_t wait_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wait_changed = PTHREAD_COND_INITIALIZER;
static struct gpc_call *waiting;
static unsigned waiting_count;
static bool reading;
static bool broken;
static bool leaving; /* said goodbye: the end of the connection is no news */
static uint64_t notices; /* messages read, under wait_lock */
static uint64_t settled_seq, settled_stream; /* submit_lock */

struct gpc_session *gpc_session(void)
{
    struct gpc_session *s = __atomic_load_n(&open_session, __ATOMIC_ACQUIRE);
    return s && !__atomic_load_n(&broken, __ATOMIC_RELAXED) ? s : NULL;
}

void gpc_session_forget(void)
{
    __atomic_store_n(&open_session, NULL, __ATOMIC_RELEASE);
}

bool gpc_session_shares(void)
{
    return session.transport && (session.transport->caps & GP_CAP_SHARE) != 0;
}

/* --- what arrives ------------------------------------------------------- */

/* The connection is over: say so once, let every waiting call fail. */
static void lose(const char *what)
{
    pthread_mutex_lock(&wait_lock);
    bool first = !broken;
    __atomic_store_n(&broken, true, __ATOMIC_RELAXED);
    for (struct gpc_call *c = waiting; c; c = c->next) {
        c->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
        c->done = true;
    }
    waiting = NULL;
    waiting_count = 0;
    pthread_cond_broadcast(&wait_changed);
    pthread_mutex_unlock(&wait_lock);
    gpc_process_set_sticky(CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (first && !leaving)
        gpc_log(GPC_LOG_ERROR,
                "session %s on %s: %s; every CUDA call of this process fails from here on "
                "(start the program again; the server's log has the reason)",
                session.id, session.server, what);
}

static struct gpc_call *waiting_take(uint64_t seq)
{
    pthread_mutex_lock(&wait_lock);
    struct gpc_call **at = &waiting;
    while (*at && (*at)->seq != seq)
        at = &(*at)->next;
    struct gpc_call *call = *at;
    if (call) {
        *at = call->next;
        waiting_count--;
    }
    pthread_mutex_unlock(&wait_lock);
    return call;
}

/* Copy an answer to where its call wants it; false when it cannot be one. */
static bool reply_fill(struct gpc_call *call, const struct gp_reply *reply, size_t size)
{
    call->result = (CUresult)reply->result;
    if (call->result != CUDA_SUCCESS || !call->reply)
        return true;
    if (size < call->reply_size)
        return false;
    memcpy(call->reply, reply, call->reply_size);
    size_t at = call->reply_size;
    for (unsigned i = 0; i < call->out_count; i++) {
        struct gpc_call_room *out = &call->out[i];
        uint32_t n;
        memcpy(&n, (const char *)reply + out->length_at, sizeof n);
        at = gp_align8(at);
        if (at > size || n > size - at || n > out->room)
            return false;
        memcpy(out->to, (const char *)reply + at, n);
        out->got = n;
        at += n;
    }
    return true;
}

static bool deliver(const void *message, size_t size)
{
    const struct gp_header *h = message;
    GPC_STATS_ADD(bytes_received, size);
    if (size < sizeof *h || h->size != size)
        return false;
    if (!(h->flags & GP_FLAG_REPLY))
        return gpc_notify_dispatch(h);
    if (size < sizeof(struct gp_reply))
        return false;
    struct gpc_call *call = waiting_take(h->seq);
    if (!call)
        return false;
    bool right = reply_fill(call, message, size);
    if (!right)
        call->result = CUDA_ERROR_UNKNOWN;
    if (gpc_error_is_sticky(call->result))
        gpc_process_set_sticky(call->result);
    pthread_mutex_lock(&wait_lock);
    call->done = true;
    pthread_mutex_unlock(&wait_lock);
    return right;
}

/* Read one message (the caller has the right to read). False when none came. */
static bool read_one(int64_t timeout_us)
{
    const void *message;
    size_t size;
    int r = session.transport->recv(session.channel, timeout_us, &message, &size);
    if (r == -EAGAIN)
        return false;
    if (r != 0) {
        lose(r == -EPROTO ? "the worker sent what is no message"
                          : "the connection to the worker was lost");
        return false;
    }
    bool right = deliver(message, size);
    session.transport->release(session.channel);
    __atomic_fetch_add(&notices, 1, __ATOMIC_RELEASE);
    if (!right)
        lose("the worker sent an answer that fits no call");
    return true;
}

/* --- what leaves --------------------------------------------------------- */

static int channel_send(struct gp_header *head, uint32_t head_size, const struct iovec *in,
                        unsigned count, unsigned flags)
{
    static const uint64_t zeros = 0;
    size_t total = head_size;
    for (unsigned i = 0; i < count; i++)
        total = gp_align8(total) + in[i].iov_len;
    total = gp_align8(total);
    head->size = (uint32_t)total;
    GPC_STATS_ADD(messages_sent, 1);
    GPC_STATS_ADD(bytes_sent, total);
    if (count == 0) {
        struct iovec one = {head, head_size};
        return session.transport->send(session.channel, &one, 1, flags);
    }
    if (total <= SMALL_MESSAGE) {
        uint64_t small[SMALL_MESSAGE / 8];
        size_t at = head_size;
        memcpy(small, head, head_size);
        for (unsigned i = 0; i < count; i++) {
            memcpy((char *)small + at, in[i].iov_base, in[i].iov_len);
            size_t end = at + in[i].iov_len;
            at = gp_align8(end);
            memset((char *)small + end, 0, at - end);
        }
        struct iovec one = {small, total};
        return session.transport->send(session.channel, &one, 1, flags);
    }
    struct iovec iov[1 + 2 * GPC_CALL_TAILS];
    int pieces = 0;
    iov[pieces++] = (struct iovec){head, head_size};
    for (unsigned i = 0; i < count; i++) {
        if (in[i].iov_len == 0)
            continue;
        iov[pieces++] = in[i];
        size_t pad = gp_align8(in[i].iov_len) - in[i].iov_len;
        if (pad)
            iov[pieces++] = (struct iovec){(void *)(uintptr_t)&zeros, pad};
    }
    return session.transport->send(session.channel, iov, pieces, flags);
}

/* Bring the worker's thread into the state of ours. Under submit_lock. */
static int follow_thread(const struct gpc_thread *t)
{
    int r = 0;
    if (t->current && t->current != wire_context) {
        struct gp_req_gp_context_set q = {.h = {.op = GP_OP_gp_context_set, .seq = ++last_seq},
                                          .ctx = (uint64_t)t->current};
        r = channel_send(&q.h, sizeof q, NULL, 0, GP_SEND_LATER);
        wire_context = t->current;
    }
    if (r == 0 && t->capture_mode != wire_capture_mode) {
        struct gp_req_gp_capture_mode_set q = {
            .h = {.op = GP_OP_gp_capture_mode_set, .seq = ++last_seq}, .mode = t->capture_mode};
        r = channel_send(&q.h, sizeof q, NULL, 0, GP_SEND_LATER);
        wire_capture_mode = t->capture_mode;
    }
    return r;
}

/* Number the call, list it if it is waited for, send it. */
static CUresult submit(struct gpc_call *call, bool wait)
{
    const struct gpc_thread *t = gpc_thread();
    struct gp_header *h = call->request;
    h->flags = wait ? GP_FLAG_WAITED : 0;
    call->done = false;
    pthread_mutex_lock(&submit_lock);
    int r = gp_op_table[h->op].in_context ? follow_thread(t) : 0;
    call->seq = h->seq = ++last_seq;
    if (wait) {
        pthread_mutex_lock(&wait_lock);
        call->next = waiting;
        waiting = call;
        waiting_count++;
        pthread_mutex_unlock(&wait_lock);
    }
    if (r == 0)
        r = channel_send(h, call->request_size, call->in, call->in_count,
                         wait ? 0 : GP_SEND_LATER);
    pthread_mutex_unlock(&submit_lock);
    if (r == 0)
        return CUDA_SUCCESS;
    if (wait)
        waiting_take(call->seq);
    if (r == -EMSGSIZE)
        return CUDA_ERROR_INVALID_VALUE;
    lose("the connection to the worker was lost");
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* Nothing has been sent since this call was: the stream is as idle as it was then. */
void gpc_session_settle(uint64_t stream, uint64_t seq)
{
    pthread_mutex_lock(&submit_lock);
    settled_stream = stream;
    settled_seq = seq;
    pthread_mutex_unlock(&submit_lock);
}

bool gpc_session_settled(uint64_t stream)
{
    pthread_mutex_lock(&submit_lock);
    bool settled = settled_seq && settled_seq == last_seq && settled_stream == stream;
    pthread_mutex_unlock(&submit_lock);
    return settled;
}

void gpc_session_context_gone(CUcontext context)
{
    pthread_mutex_lock(&submit_lock);
    if (wire_context == context)
        wire_context = NULL;
    pthread_mutex_unlock(&submit_lock);
}

CUresult gpc_call_post(struct gpc_call *call)
{
    if (!gpc_session())
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    /* in a capture errors matter at once, and time does not */
    if (sync_mode || gpc_capture_active())
        return gpc_call_exchange(call);
    CUresult r = submit(call, false);
    /* once in a while, take what the worker has to say, so that errors show
     * and its side of the channel never fills */
    if ((call->seq & 63) == 0)
        gpc_session_poll();
    return r;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Wait until `*done`, reading for everybody whenever nobody else does. */
static void wait_for(const bool *done)
{
    pthread_mutex_lock(&wait_lock);
    while (!*done && !broken) {
        if (reading) {
            pthread_cond_wait(&wait_changed, &wait_lock);
            continue;
        }
        reading = true;
        pthread_mutex_unlock(&wait_lock);
        read_one(-1);
        pthread_mutex_lock(&wait_lock);
        reading = false;
        pthread_cond_broadcast(&wait_changed);
    }
    pthread_mutex_unlock(&wait_lock);
}

CUresult gpc_call_begin(struct gpc_call *call)
{
    if (!gpc_session())
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return submit(call, true);
}

CUresult gpc_call_finish(struct gpc_call *call)
{
    uint64_t begin = now_ns();
    wait_for(&call->done);
    GPC_STATS_ADD(waited_ns, now_ns() - begin);
    gpc_thread()->last_answer = call->seq;
    if (!call->part_of_one)
        GPC_STATS_ADD(round_trips, 1);
    return call->done ? call->result : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult gpc_call_exchange(struct gpc_call *call)
{
    CUresult r = gpc_call_begin(call);
    return r == CUDA_SUCCESS ? gpc_call_finish(call) : r;
}

void gpc_session_poll(void)
{
    if (!gpc_session() || pthread_mutex_trylock(&wait_lock) != 0)
        return;
    bool mine = !reading;
    reading = true;
    pthread_mutex_unlock(&wait_lock);
    if (!mine)
        return;
    while (read_one(0) && !broken)
        ;
    pthread_mutex_lock(&wait_lock);
    reading = false;
    pthread_cond_broadcast(&wait_changed);
    pthread_mutex_unlock(&wait_lock);
}

uint64_t gpc_session_notices(void)
{
    return __atomic_load_n(&notices, __ATOMIC_ACQUIRE);
}

CUresult gpc_session_wait_notice(uint64_t seen)
{
    struct gpc_session *s = gpc_session();
    if (!s)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    s->transport->flush(s->channel);
    pthread_mutex_lock(&wait_lock);
    if (notices != seen || broken) {
        pthread_mutex_unlock(&wait_lock); /* something came in the meantime */
    } else if (reading) {
        /* somebody else reads: what it reads next may be what we wait for */
        pthread_cond_wait(&wait_changed, &wait_lock);
        pthread_mutex_unlock(&wait_lock);
    } else {
        reading = true;
        pthread_mutex_unlock(&wait_lock);
        read_one(-1);
        pthread_mutex_lock(&wait_lock);
        reading = false;
        pthread_cond_broadcast(&wait_changed);
        pthread_mutex_unlock(&wait_lock);
    }
    return broken ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

void gpc_on_gp_async_error(const struct gp_req_gp_async_error *q)
{
    CUresult error = (CUresult)q->result;
    const char *name = q->op < GP_OP_COUNT ? gp_op_table[q->op].name : NULL;
    gpc_log(GPC_LOG_INFO, "%s failed on the GPU host: CUDA error %d%s", name ? name : "a call",
            q->result, q->sticky ? " (sticky)" : "");
    if (q->sticky)
        gpc_process_set_sticky(error);
    else
        gpc_process_set_pending(error);
}

void gpc_on_gp_output(const struct gp_req_gp_output *q, const char *text)
{
    fwrite(text, 1, q->bytes, stdout);
}

/* --- opening ------------------------------------------------------------- */

/* The server offers tcp, any host, two ports: the host is where we reached it. */
static void fill_host(const char *offered, const char *server, char *out, size_t size)
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

static bool connect_to(const char *url, const char *plugins, struct gp_error *err)
{
    session.transport = gp_transport_find(url, plugins, err);
    if (!session.transport)
        return false;
    return session.transport->connect(url, CONNECT_TIMEOUT_MS, &session.channel, err) == 0;
}

/* Shared memory when the server is on this machine, else the network. */
static bool connect_worker(const struct gpc_admission *a, const char *plugins, struct gp_error *err)
{
    const char *wish = getenv("GPUPOOL_TRANSPORT");
    char boot[64];
    gpc_boot_id(boot);
    bool same_machine = boot[0] && strcmp(boot, a->boot_id) == 0;
    bool any = !wish || !*wish || strcmp(wish, "auto") == 0;
    if (!any && strcmp(wish, "shm") != 0 && strcmp(wish, "zmq") != 0) {
        gp_error_set(err, "GPUPOOL_TRANSPORT=%s: must be auto, shm or zmq", wish);
        return false;
    }
    if (!any && strcmp(wish, "shm") == 0 && !(same_machine && a->shm[0])) {
        gp_error_set(err, "GPUPOOL_TRANSPORT=shm, but %s is not on this machine", session.server);
        return false;
    }
    if (a->shm[0] && same_machine && (any || strcmp(wish, "shm") == 0)) {
        if (connect_to(a->shm, plugins, err))
            return true;
        if (!any || !a->zmq[0])
            return false;
        gpc_log(GPC_LOG_INFO, "no shared memory with %s (%s); using the network", session.server,
                err->text);
    }
    if (!a->zmq[0]) {
        gp_error_set(err, "%s offers no network transport", session.server);
        return false;
    }
    char url[512];
    fill_host(a->zmq, session.server, url, sizeof url);
    return connect_to(url, plugins, err);
}

static bool snapshot_right(const struct gp_snapshot *s, uint32_t bytes)
{
    return bytes >= sizeof *s && s->size == bytes && s->device_count <= GP_DEVICES_MAX &&
           bytes == sizeof *s + s->device_count * sizeof s->devices[0];
}

/* First message: show the secret, get everything that can be known beforehand. */
static CUresult greet(const struct gpc_admission *a)
{
    session.snapshot = calloc(1, GP_SNAPSHOT_MAX);
    if (!session.snapshot)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_hello(GP_WIRE_VERSION, (uint32_t)getpid(), GP_SPEC_HASH, a->secret,
                                   program_invocation_short_name, session.snapshot, &got);
    if (r == CUDA_SUCCESS && !snapshot_right(session.snapshot, got))
        r = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    return r;
}

static CUresult fail(const char *why)
{
    gpc_log(GPC_LOG_ERROR, "%s", why);
    return CUDA_ERROR_NO_DEVICE;
}

CUresult gpc_session_open(void)
{
    const char *server = getenv("GPUPOOL_SERVER"), *token = getenv("GPUPOOL_TOKEN");
    if (!server || !*server)
        return fail("GPUPOOL_SERVER is not set: start the program with `gpupool run`, or set it "
                    "to the server's address, tcp://HOST:7700");
    if (strchr(server, ','))
        return fail("GPUPOOL_SERVER names several servers: one is supported, give one address");
    if (strlen(server) >= sizeof session.server)
        return fail("GPUPOOL_SERVER is too long for an address");
    strcpy(session.server, server);
    char plugins[4096], why[1024];
    gpc_plugin_folder(gpc_session_goodbye, plugins, sizeof plugins);
    struct gpc_admission a;
    CUresult r = gpc_front_door_ask(server, token ? token : "", plugins, &a, why, sizeof why);
    if (r != CUDA_SUCCESS) {
        gpc_log(GPC_LOG_ERROR, "%s", why);
        return r;
    }
    strcpy(session.id, a.session);
    struct gp_error err = {""};
    if (!connect_worker(&a, plugins, &err))
        return fail(err.text);
    const char *sync = getenv("GPUPOOL_SYNC");
    sync_mode = sync && strcmp(sync, "1") == 0;
    __atomic_store_n(&broken, false, __ATOMIC_RELAXED);
    __atomic_store_n(&open_session, &session, __ATOMIC_RELEASE);
    r = greet(&a);
    if (r == CUDA_SUCCESS) {
        gpc_log(GPC_LOG_INFO, "session %s on %s over %s, %u device%s", session.id, server,
                session.transport->name, session.snapshot->device_count,
                session.snapshot->device_count == 1 ? "" : "s");
        gpc_memory_open();
        return CUDA_SUCCESS;
    }
    __atomic_store_n(&open_session, NULL, __ATOMIC_RELEASE);
    session.transport->close(session.channel);
    free(session.snapshot);
    session.snapshot = NULL;
    gpc_log(GPC_LOG_ERROR, "%s: the worker refused the session (CUDA error %d); is this client of "
            "the server's version?", server, (int)r);
    return r;
}

void gpc_session_goodbye(void)
{
    struct gpc_session *s = gpc_session();
    if (!s)
        return;
    /* a thread that still runs may hold the lock for ever: give it a moment */
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 100000000;
    if (soon.tv_nsec >= 1000000000) {
        soon.tv_sec++;
        soon.tv_nsec -= 1000000000;
    }
    if (pthread_mutex_timedlock(&submit_lock, &soon) != 0)
        return;
    leaving = true;
    struct gp_req_gp_goodbye q = {.h = {.op = GP_OP_gp_goodbye, .seq = ++last_seq}};
    channel_send(&q.h, sizeof q, NULL, 0, 0);
    s->transport->flush(s->channel);
    pthread_mutex_unlock(&submit_lock);
}

/* --- devices ------------------------------------------------------------- */

uint32_t gpc_device_count(void)
{
    return session.snapshot ? session.snapshot->device_count : 0;
}

const struct gp_device_info *gpc_device_info(CUdevice device)
{
    if (device < 0 || (uint32_t)device >= gpc_device_count())
        return NULL;
    return &session.snapshot->devices[device];
}
