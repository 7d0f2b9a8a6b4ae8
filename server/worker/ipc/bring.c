/*
 * Asking the server what is behind a name. One question is under way at a time, as a datagram
 * "bring NUMBER SESSION TOKEN"; the answer is one, too: the number, and what the other worker has
 * said, with the descriptors. A server that is restarted gives us another socket (control.c), and
 * the question is asked again there.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "descriptors.h"
#include "gpw_handlers.h"
#include "ipc.h"
#include "monotonic.h"
#include "ranks.h"
#include "transport/hex.h"

/* The server may be away; then the call fails. */
#define PATIENCE_NS UINT64_C(20000000000)
/* Taken at a time that nobody has asked for. */
#define LINES_MOST 64
/* Between two looks, on the way out. */
#define LOOK_NS 1000000

struct gpw_bring {
    struct gpw_wait wait;
    struct gpw_token token;
    struct gp_ipc_name name;
    uint64_t since;
    int asked_at;      /* the socket that the question went to, -1: to none yet */
    uint64_t question; /* its number */
    bool over;
    CUresult result;
};

int gpw_ipc_open(struct gpw_session *s, const char *id)
{
    char text[2 * GPW_IPC_SESSION_BYTES + 1];
    struct gpw_ipc *ipc = calloc(1, sizeof *ipc);
    if (!ipc)
        return -1;
    ipc->server = -1;
    pthread_mutex_init(&ipc->lock, NULL);
    snprintf(text, sizeof text, "%s", id);
    gp_hex_read(text, ipc->session, sizeof ipc->session); /* else nobody will find it */
    s->ipc = ipc;
    return 0;
}

void gpw_ipc_server(struct gpw_session *s, int connection)
{
    pthread_mutex_lock(&s->ipc->lock);
    int before = s->ipc->server;
    s->ipc->server = connection;
    s->ipc->servers++;
    pthread_mutex_unlock(&s->ipc->lock);
    if (before >= 0)
        close(before);
}

uint64_t gpw_ipc_servers(struct gpw_session *s)
{
    pthread_mutex_lock(&s->ipc->lock);
    uint64_t servers = s->ipc->servers;
    pthread_mutex_unlock(&s->ipc->lock);
    return servers;
}

bool gpw_ipc_say(struct gpw_session *s, const char *line)
{
    size_t length = strlen(line);
    pthread_mutex_lock(&s->ipc->lock);
    ssize_t n = s->ipc->server < 0
                    ? -1
                    : send(s->ipc->server, line, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    pthread_mutex_unlock(&s->ipc->lock);
    return n == (ssize_t)length;
}

/* --- one question ------------------------------------------------------------------------ */

/* The lock is held. */
static void ask(struct gpw_ipc *ipc, struct gpw_bring *b)
{
    char session[2 * GPW_IPC_SESSION_BYTES + 1], token[2 * GPW_TOKEN_BYTES + 1], line[128];
    gp_hex_show(b->name.session, GPW_IPC_SESSION_BYTES, session);
    gp_hex_show(b->name.token, GPW_TOKEN_BYTES, token);
    b->question = ++ipc->questions;
    int length = snprintf(line, sizeof line, "bring %llu %s %s", (unsigned long long)b->question,
                          session, token);
    if (send(ipc->server, line, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL) == length)
        b->asked_at = ipc->server;
}

/* The lock is held. The length of an answer, 0 while there is none. */
static size_t hear(struct gpw_ipc *ipc, char *line, size_t room, int fds[GPW_SHAREABLE_FDS])
{
    struct iovec iov = {line, room - 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(GPW_SHAREABLE_FDS * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(ipc->server, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return 0;
    gp_descriptors_take(&message, fds, GPW_SHAREABLE_FDS);
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return (size_t)n;
}

static void drop(const int fds[GPW_SHAREABLE_FDS])
{
    for (unsigned i = 0; i < GPW_SHAREABLE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* One line and its descriptors; false: there is none now. */
static bool take_line(struct gpw_session *s, char *line, size_t room, int fds[GPW_SHAREABLE_FDS])
{
    for (unsigned i = 0; i < GPW_SHAREABLE_FDS; i++)
        fds[i] = -1;
    pthread_mutex_lock(&s->ipc->lock);
    size_t length = s->ipc->server < 0 ? 0 : hear(s->ipc, line, room, fds);
    pthread_mutex_unlock(&s->ipc->lock);
    return length != 0;
}

/* What came, or nothing yet. An answer to a question that nobody asks any more is passed over, and
 * what the server says unasked has no number. */
static void take(struct gpw_session *s, struct gpw_bring *b)
{
    char line[GPW_SHAREABLE_LINE + 32];
    int fds[GPW_SHAREABLE_FDS], at = 0;
    unsigned long long question = 0;
    if (!take_line(s, line, sizeof line, fds))
        return;
    if (sscanf(line, "%llu %n", &question, &at) != 1 || question != b->question) {
        gpw_ranks_heard(s, line);
        drop(fds);
        return;
    }
    b->over = true;
    b->result = gpw_shareable_brought(s, &b->name, line + at, fds);
}

void gpw_ipc_listen(struct gpw_session *s)
{
    char line[GPW_SHAREABLE_LINE + 32];
    int fds[GPW_SHAREABLE_FDS];
    for (unsigned i = 0; i < LINES_MOST && !s->ipc->asking; i++) {
        if (!take_line(s, line, sizeof line, fds))
            return;
        gpw_ranks_heard(s, line);
        drop(fds);
    }
}

/* --- on the way out ----------------------------------------------------------------------- */

static bool look_again(uint64_t until_ns)
{
    struct timespec pause = {.tv_nsec = LOOK_NS};
    nanosleep(&pause, NULL);
    return gp_now_ns() < until_ns;
}

bool gpw_ipc_await_server(struct gpw_session *s, uint64_t until_ns)
{
    while (!gpw_ipc_servers(s))
        if (!look_again(until_ns))
            return false;
    return true;
}

static bool server_gone(struct gpw_session *s)
{
    pthread_mutex_lock(&s->ipc->lock);
    struct pollfd server = {.fd = s->ipc->server};
    poll(&server, 1, 0);
    pthread_mutex_unlock(&s->ipc->lock);
    return server.revents & (POLLHUP | POLLERR);
}

/* Whether it has answered: it has taken in all that it was told before. */
static bool settled(struct gpw_session *s)
{
    char line[GPW_SHAREABLE_LINE + 32];
    int fds[GPW_SHAREABLE_FDS];
    while (take_line(s, line, sizeof line, fds)) {
        drop(fds);
        if (strcmp(line, "settled") == 0)
            return true;
    }
    return false;
}

void gpw_ipc_settle(struct gpw_session *s, uint64_t until_ns)
{
    if (gpw_ipc_say(s, "settle"))
        while (!settled(s) && !server_gone(s) && look_again(until_ns))
            ;
}

/* --- waiting for an answer ---------------------------------------------------------------- */

/* It is its turn. */
static void go_on(struct gpw_session *s, struct gpw_bring *b)
{
    struct gpw_ipc *ipc = s->ipc;
    ipc->asking = b;
    if (b->asked_at < 0 &&
        gpw_shareable_find(s, &b->name)) { /* another thread has had it brought */
        b->over = true;
        return;
    }
    pthread_mutex_lock(&ipc->lock);
    if (ipc->server >= 0 && b->asked_at != ipc->server)
        ask(ipc, b);
    pthread_mutex_unlock(&ipc->lock);
    if (b->asked_at >= 0)
        take(s, b);
}

static bool bring_ready(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_bring *b = (struct gpw_bring *)w;
    struct gpw_ipc *ipc = s->ipc;
    if (!b->over && (!ipc->asking || ipc->asking == b))
        go_on(s, b);
    if (!b->over && gp_now_ns() - b->since > PATIENCE_NS) {
        gpw_log("warn", "the server has not answered what another process shares; is it running?");
        b->over = true;
        b->result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (b->over && ipc->asking == b)
        ipc->asking = NULL;
    return b->over;
}

static void bring_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    if (s->ipc->asking == (struct gpw_bring *)w)
        s->ipc->asking = NULL;
    gpw_budget_give(s, GPW_USE_WAITS, sizeof(struct gpw_bring));
    free(w);
}

static bool bring_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_bring *b = (struct gpw_bring *)w;
    gpw_answer_gp_ipc_bring(s, b->token, b->result);
    bring_cancel(s, w);
    return true;
}

CUresult gpw_gp_ipc_bring(struct gpw_session *s, struct gpw_token token,
                          const struct gp_ipc_name *name)
{
    if (name->magic != GP_IPC_MAGIC || name->kind < GP_IPC_MEMORY || name->kind > GP_IPC_POOL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gpw_shareable *known = gpw_shareable_find(s, name);
    if (known || gpw_shareable_is_own(s, name))
        return known && !known->ended && known->kind == gpw_shareable_kind(name->kind)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    if (!gpw_budget_take(s, GPW_USE_WAITS, sizeof(struct gpw_bring)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_bring *b = malloc(sizeof *b);
    if (!b) {
        gpw_budget_give(s, GPW_USE_WAITS, sizeof *b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *b = (struct gpw_bring){.wait = {.what = "an answer of the server",
                                     .ready = bring_ready,
                                     .poll = bring_poll,
                                     .cancel = bring_cancel},
                            .token = token,
                            .name = *name,
                            .since = gp_now_ns(),
                            .asked_at = -1};
    gpw_wait_add(s, &b->wait);
    return GPW_DEFERRED;
}
