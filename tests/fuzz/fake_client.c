#include "fake_client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "apart.h"
#include "fake_lent.h"
#include "fake_peer.h"
#include "gp_errors.h"
#include "gp_nccl_calls.h"
#include "loop.h"
#include "nccl.h"
#include "steps.h"

/* How often the worker is left to itself, 50 us each, before the client hangs up. */
#define LOOKS 8
/* And for how many it is waited until NCCL has made what was begun. */
#define SETTLES 200
#define SHARE_BYTES ((size_t)1 << 20)
#define SMALL_SHARE_BYTES ((size_t)4096)
#define COOKIES 32
/* Of how a step is sent: before it the client has read nothing of what is lent to its channel. */
#define SLOW 4
/* A worker that may stand is left so many moments, each of so much time: of those in which the
 * machine does not let it run, only one counts. */
#define MOMENTS 3
#if __has_feature(thread_sanitizer) /* all takes ten times as long, and a report some more */
#define MOMENT_US 50000
#else
#define MOMENT_US 2000
#endif

struct gp_channel {
    struct gpw_session *session;
    struct draw draw;
    struct gp_header *message; /* GP_MESSAGE_MAX bytes: the one at hand */
    const uint8_t *data;
    size_t size;
    bool sticky, may_stand, joined;
    bool says;    /* what is answered, for who looks at an input (FUZZ_LOG) */
    bool several; /* ranks, which may wait for each other */
    unsigned looks, shares, settles;
    uint64_t seq, asked; /* the number of the last message; of messages */
    uint64_t settling;   /* of one whose answer is waited for; 0: none is */
    uint64_t cookies[COOKIES];
    unsigned cookies_put, cookies_taken;
    int result;
};

static struct gp_channel channel;

/* Of the worker's own: it may neither come to the client nor change. */
static uint64_t secret[64];
#define SECRET UINT64_C(0x5ec2e75ec2e75ec2)

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_worker: %s\n", what);
    abort();
}

static void learn(const struct gp_header *h)
{
    const uint64_t *words = (const uint64_t *)(h + 1) + 1; /* behind the result */
    size_t count = h->size > 24 ? (h->size - 24) / 8 : 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t word = words[i];
        if (word == SECRET)
            fail("a reply has the worker's own bytes in it");
        if (i >= 64)
            continue;
        if (word >= GP_WINDOW_BASE && word < GP_WINDOW_BASE + 2 * GP_WINDOW_SIZE)
            draw_learn_address(&channel.draw, word);
        if (word & GP_HANDLE_WORKER_NAMED && word >> GP_HANDLE_SESSION_SHIFT == 0)
            draw_learn_handle(&channel.draw, word);
    }
    const struct gp_rep_gp_nccl_unique_id *id = (const void *)h;
    if (h->op == GP_OP_gp_nccl_unique_id && id->n_id == GP_NCCL_ID_BYTES)
        memcpy(channel.draw.unique_id, id + 1, GP_NCCL_ID_BYTES);
    if (h->op == GP_OP_gp_pinned_open && count)
        draw_learn_address(&channel.draw, words[0]);
    if (h->op == GP_OP_gp_launch_updatable && count)
        channel.draw.node = words[0];
}

static void hear(const struct gp_header *h)
{
    struct gp_channel *c = &channel;
    if (h->op == GP_OP_gp_host_call && !(h->flags & GP_FLAG_REPLY)) {
        if (c->cookies_put - c->cookies_taken < COOKIES)
            c->cookies[c->cookies_put++ % COOKIES] =
                ((const struct gp_req_gp_host_call *)h)->cookie;
        return;
    }
    if (h->op == GP_OP_gp_async_error && ((const struct gp_req_gp_async_error *)h)->sticky)
        c->sticky = true;
    if (!(h->flags & GP_FLAG_REPLY))
        return;
    if (h->seq > c->seq)
        fail("a reply to a message that was not sent");
    c->settling = h->seq == c->settling ? 0 : c->settling;
    c->result = ((const struct gp_reply *)h)->result;
    if (c->result < 0 || c->result > CUDA_ERROR_UNKNOWN)
        fail("a reply whose result is no CUDA error");
    c->sticky |= gp_error_is_sticky(c->result);
    if (c->says)
        fprintf(stderr, "%s: %d\n", gp_op_info(h->op)->name, c->result);
    if (c->result == 0)
        learn(h);
}

static int client_send(struct gp_channel *c, const struct iovec *iov, int count, unsigned flags)
{
    static _Alignas(16) unsigned char whole[GP_MESSAGE_MAX];
    size_t at = 0;
    (void)c;
    if (flags & GP_SEND_LENT)
        fake_lend(iov, count);
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > sizeof whole - at)
            fail("a message that is too long");
        memcpy(whole + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    const struct gp_header *h = (const void *)whole;
    if (at < sizeof *h || h->size != at || at % 8)
        fail("a message whose size is not its own");
    hear(h);
    return 0;
}

static int client_flush(struct gp_channel *c)
{
    (void)c;
    return 0;
}

static int host_done(struct gp_channel *c, const void **message, size_t *size)
{
    struct gp_req_gp_host_done *q = (void *)c->message;
    memset(q, 0, sizeof *q);
    q->h = (struct gp_header){sizeof *q, GP_OP_gp_host_done, 0, ++c->seq};
    q->cookie = c->cookies[c->cookies_taken++ % COOKIES];
    *message = q;
    *size = sizeof *q;
    return 0;
}

int __asan_report_present(void) __attribute__((weak)); /* there is none in other builds */

static volatile sig_atomic_t moments;

/* On whatever thread: it is not looked at. */
__attribute__((disable_sanitizer_instrumentation)) static void hang_up(int signal)
{
    (void)signal;
    bool reports = __asan_report_present && __asan_report_present(); /* which takes its time */
    if (++moments > MOMENTS && !reports && apart_may_end())
        _exit(0);
}

static void patience_begin(void)
{
    struct timeval moment = {.tv_usec = MOMENT_US};
    moments = 0;
    signal(SIGALRM, hang_up);
    setitimer(ITIMER_REAL, &(struct itimerval){moment, moment}, NULL);
}

/* Ranks wait for each other, and one that sends itself what it does not receive has failed: then its
 * stream waits until the worker's loop comes to abort it, which may wait for the stream. */
static bool group_may_stand(const struct gp_header *h)
{
    const struct gp_req_gp_nccl_group *q = (const void *)h;
    const struct gp_nccl_call *calls = (const void *)(q + 1);
    bool stands = channel.several;
    size_t room = h->size > sizeof *q ? (h->size - sizeof *q) / sizeof *calls : 0;
    for (size_t i = 0; i < room; i++)
        stands |= calls[i].function == GP_NCCL_Send || calls[i].function == GP_NCCL_Recv;
    return stands;
}

/* A client may make its streams wait for ever, or for long, and then itself: its worker stands
 * with it, and ends when the client does. */
static void patience_after(const struct gp_header *h)
{
    const struct gp_req_gp_launch *l = (const void *)h;
    bool large = h->op == GP_OP_gp_launch && h->size >= sizeof *l &&
                 (double)l->grid_x * l->grid_y * l->grid_z * l->block_x * l->block_y > 1e5;
    switch (h->op) {
    case GP_OP_cuStreamWaitValue32:
    case GP_OP_cuStreamWaitValue64:
    case GP_OP_cuStreamBatchMemOp:
    case GP_OP_cuStreamWaitValue32_v2:
    case GP_OP_cuStreamWaitValue64_v2:
    case GP_OP_cuStreamBatchMemOp_v2:
    case GP_OP_gp_node_batch:
    case GP_OP_gp_node_set_batch:
    case GP_OP_gp_node_condition:
    case GP_OP_gp_fence:
    case GP_OP_gp_host_function:
    case GP_OP_gp_peer_send:
    case GP_OP_gp_peer_recv:
        break;
    case GP_OP_gp_nccl_init:
        channel.several |= ((const struct gp_req_gp_nccl_init *)h)->ranks > 1;
        return;
    case GP_OP_gp_nccl_settled:
        channel.settling = h->seq;
        channel.settles = 0;
        return;
    case GP_OP_gp_nccl_group:
        channel.settles = 0;
        if (!group_may_stand(h))
            return;
        break;
    default:
        if (!large)
            return;
    }
    channel.may_stand = true;
    patience_begin();
}

/* Let the GPU go on. */
static int look(int64_t timeout_us)
{
    struct timespec t = {0, 50000};
    if (timeout_us != 0)
        nanosleep(&t, NULL);
    return -EAGAIN;
}

static bool is_peers(const uint8_t *step, size_t bytes)
{
    return bytes > 2 && (step[1] | (unsigned)step[2] << 8) == FAKE_PEER_STEP;
}

/* Not the client's: the words of a worker that this one is joined to; the first of these steps
 * is the client's order to let it come. */
static int peer_step(struct gp_channel *c, const void **message, size_t *size)
{
    uint8_t opens = draw_byte(&c->draw) & 1;
    draw_byte(&c->draw);
    draw_byte(&c->draw);
    if (!opens && c->joined) {
        fake_peer_say(&c->draw);
        return -EAGAIN;
    }
    c->joined = true;
    *size = fake_peer_open(&c->draw, c->message, ++c->seq);
    *message = c->message;
    return 0;
}

/* Memory that is taken away beneath a collective is a fault on a GPU, and the end of a process that
 * has the soft NCCL: in front of what may do so the client waits, or hangs up. */
static bool beneath_collective(const struct gp_channel *c)
{
    uint16_t op = c->size > 3 ? (uint16_t)(c->data[2] | c->data[3] << 8) : 0;
    bool of_nccl = op >= GP_OP_gp_nccl_version && op <= GP_OP_gp_nccl_deregister;
    return c->size && !of_nccl && gpw_nccl_pending(c->session);
}

static int client_recv(struct gp_channel *c, int64_t timeout_us, const void **message, size_t *size)
{
    const uint8_t *step;
    size_t bytes;
    bool waits = c->cookies_put != c->cookies_taken;
    c->message = fake_kept_room();
    if (waits && (c->size == 0 || c->data[0] % 4))
        return host_done(c, message, size);
    if (c->settling && c->settles++ < SETTLES) /* what comes behind it would be refused */
        return look(timeout_us);
    if (beneath_collective(c))
        return c->settles++ < SETTLES ? look(timeout_us) : -EPIPE;
    if (steps_next(&c->data, &c->size, &step, &bytes)) {
        if (bytes == 0 || !(step[0] & SLOW))
            fake_lent_read();
        if (bytes == 0)
            return look(timeout_us);
        draw_start(&c->draw, step, bytes);
        if (is_peers(step, bytes))
            return peer_step(c, message, size);
        *size = draw_message(&c->draw, c->message, ++c->seq);
        *message = c->message;
        patience_after(c->message);
        return 0;
    }
    if (gpw_waits_any(c->session) && c->looks++ < LOOKS)
        return look(timeout_us ? timeout_us : c->looks > LOOKS / 2);
    c->looks = 0;
    fake_lent_read();
    /* with an error that stays nothing more would be tried */
    if (c->sticky || !apart_next(&c->data, &c->size))
        return -EPIPE;
    if (c->may_stand)
        patience_begin();
    return -EAGAIN;
}

static void client_release(struct gp_channel *c)
{
    (void)c;
}

static int client_accept_share(struct gp_channel *c, uint64_t id, struct gp_share *out)
{
    size_t bytes = id % 4 == 3 ? SMALL_SHARE_BYTES : SHARE_BYTES;
    if (c->shares >= 4)
        return -ENOENT;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -ENOMEM;
    c->shares++;
    *out = (struct gp_share){.addr = at, .size = bytes, .id = id};
    return 0;
}

static void client_unshare(struct gp_channel *c, struct gp_share *share)
{
    (void)c;
    munmap(share->addr, share->size);
}

static const struct gp_transport client_transport = {
    .abi = GP_TRANSPORT_ABI,
    .name = "fuzz",
    .caps = GP_CAP_SHARE,
    .send = client_send,
    .lent = fake_lent,
    .returned = fake_returned,
    .flush = client_flush,
    .recv = client_recv,
    .release = client_release,
    .keep = fake_keep,
    .let_go = fake_let_go,
    .accept_share = client_accept_share,
    .unshare = client_unshare,
};

void fake_client_open(struct gpw_session *s)
{
    for (size_t i = 0; i < sizeof secret / sizeof secret[0]; i++)
        secret[i] = SECRET;
    channel.session = s;
    channel.says = getenv("FUZZ_LOG") != NULL;
    channel.draw.forbidden = (uint64_t)(uintptr_t)secret;
    fake_kept_open();
    s->transport = &client_transport;
    s->channel = &channel;
}

void fake_client_start(const uint8_t *data, size_t size)
{
    channel.data = data;
    channel.size = size;
}

struct draw *fake_client_draw(void)
{
    return &channel.draw;
}

uint64_t fake_client_next_seq(void)
{
    return ++channel.seq;
}

int fake_client_result(void)
{
    return channel.result;
}

bool fake_client_unharmed(void)
{
    for (size_t i = 0; i < sizeof secret / sizeof secret[0]; i++)
        if (secret[i] != SECRET)
            return false;
    return true;
}
