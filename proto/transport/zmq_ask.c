#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "transport/zmq_link.h"

/* A server's answer is a few kB of text; this bounds what a stranger can send. */
#define ANSWER_MAX ((int64_t)16 << 20)

/* Before a question is asked again, for which a handshake may take twice as long. */
#define ASK_PAUSE_US 50000
#define ASK_DOUBLINGS 3
/* A server that is busy, or only begins, may break off before; who does so this often is none. */
#define ASK_BREAKS 5

/* A question, and how it went so far. */
struct question {
    const char *url; /* as it is shown: without a key */
    struct link_curve curve;
    int timeout_ms;
    int64_t deadline, reach, begun; /* ns; `reach`: until somebody accepts */
    struct link link;
    bool connected; /* somebody accepted, now or before */
    int cut;        /* how often it broke off behind the handshake */
    enum link_trouble trouble;
};

static int question_fail(const struct question *q, int rc, struct gp_error *err)
{
    const char *url = q->url;
    switch (rc) {
    case LINK_NO_THREAD:
        return link_no_thread(url, err);
    case -EACCES:
        return link_trouble_explain(q->trouble, "server", url, err);
    case -ECONNREFUSED:
        gp_error_set(err,
                     "no gpupool server answers at %.100s: connection refused; is "
                     "gpupool-server running there and the port right?",
                     url);
        return rc;
    case -EADDRNOTAVAIL:
        gp_error_set(err,
                     "no gpupool server answers at %.100s: the host is not known; check its "
                     "name",
                     url);
        return -EHOSTUNREACH;
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        gp_error_set(err,
                     "no gpupool server answers at %.100s: %s; check the address and the "
                     "network",
                     url, strerror(-rc));
        return -EHOSTUNREACH;
    case -ETIMEDOUT:
        if (q->connected) /* perhaps by the kernel, for a process that cannot */
            gp_error_set(err,
                         "the server at %.100s takes connections but says nothing within "
                         "%d ms; is it stopped, or out of file descriptors (its log says "
                         "so), or no gpupool-server?",
                         url, q->timeout_ms);
        else
            gp_error_set(err,
                         "no gpupool server answers at %.100s within %d ms: check the "
                         "address, and that no firewall drops the port",
                         url, q->timeout_ms < GP_REACH_MS ? q->timeout_ms : GP_REACH_MS);
        return rc;
    case -EPROTO:
        gp_error_set(err, "what answers at %.100s is not a gpupool server; check the port", url);
        return rc;
    case -EMSGSIZE:
        gp_error_set(err,
                     "the server at %.100s gives a longer answer than this version "
                     "understands; do the versions match?",
                     url);
        return rc;
    case -EINVAL:
        gp_error_set(err, "'%.100s' is not an address of a server: write tcp://HOST:PORT", url);
        return rc;
    default:
        gp_error_set(err, "cannot ask the server at %.100s: %s", url, strerror(-rc));
        return rc;
    }
}

/* The answer, if there: 0, -EAGAIN, -EMSGSIZE, -EPROTO (more than one frame). */
static int answer_take(void *socket, void *answer, size_t *answer_size)
{
    zmq_msg_t msg;
    zmq_msg_init(&msg);
    int rc = -EAGAIN;
    if (zmq_msg_recv(&msg, socket, ZMQ_DONTWAIT) >= 0) {
        size_t size = zmq_msg_size(&msg);
        rc = zmq_msg_more(&msg) ? -EPROTO : size > *answer_size ? -EMSGSIZE : 0;
        if (rc == 0) {
            memcpy(answer, zmq_msg_data(&msg), size);
            *answer_size = size;
        }
    }
    zmq_msg_close(&msg);
    return rc;
}

/* The connection broke. -EAGAIN: as happens when a server stops or is busy; ask again. */
static int question_broken(struct question *q, bool again)
{
    bool slow = gp_clock_ns() - q->begun >= (int64_t)LINK_HANDSHAKE_MS * 1000000;
    if (q->link.shaken) /* who takes the questions may just have died, and has a successor */
        return ++q->cut < ASK_BREAKS ? -EAGAIN : -EPROTO;
    q->trouble = link_curve_trouble(&q->curve, q->url, gp_deadline_left_ms(q->deadline, 1000));
    switch (q->trouble) {
    case LINK_TROUBLE_SILENT:
        return -EAGAIN;
    case LINK_TROUBLE_NONE:
        return slow || !again ? -EAGAIN : -EPROTO;
    case LINK_TROUBLE_WRONG_KEY:
        return slow || !again ? -EAGAIN : -EACCES;
    default:
        return link_trouble_of_keys(q->trouble) ? -EACCES : -EPROTO;
    }
}

static int answer_wait(struct question *q, void *answer, size_t *answer_size, bool again)
{
    struct link *link = &q->link;
    for (;;) {
        q->connected |= link->connected;
        int left = gp_deadline_left_ms(q->connected ? q->deadline : q->reach, 1000);
        zmq_pollitem_t items[] = {
            {.socket = link->socket, .events = ZMQ_POLLIN},
            {.socket = link->monitor, .events = ZMQ_POLLIN},
        };
        zmq_poll(items, 2, left);
        link_events(link);
        int rc = answer_take(link->socket, answer, answer_size);
        if (rc != -EAGAIN)
            return rc;
        if (link->broken)
            return question_broken(q, again);
        if (link->refused) {
            rc = link_probe(q->url, gp_deadline_left_ms(q->deadline, 1000));
            return rc ? rc : -ECONNREFUSED;
        }
        if (left == 0)
            return -ETIMEDOUT;
    }
}

static int ask_open(struct question *q, void *ctx, int doublings)
{
    struct link *link = &q->link;
    int64_t longest = ANSWER_MAX;
    int handshake_ms = LINK_HANDSHAKE_MS << doublings;
    *link = (struct link){.peer_fd = -1};
    link->socket = zmq_socket(ctx, ZMQ_DEALER);
    if (!link->socket)
        return link_errno();
    int rc = link_common_options(link->socket, q->url, &q->curve);
    if (rc == 0 && zmq_setsockopt(link->socket, ZMQ_MAXMSGSIZE, &longest, sizeof longest) != 0)
        rc = link_errno();
    if (rc == 0 &&
        zmq_setsockopt(link->socket, ZMQ_HANDSHAKE_IVL, &handshake_ms, sizeof handshake_ms) != 0)
        rc = link_errno();
    if (rc == 0 && !(link->monitor = link_monitor_open(ctx, link->socket)))
        rc = link_errno();
    if (rc == 0 && zmq_connect(link->socket, q->url) != 0)
        rc = link_errno();
    return rc;
}

static int ask_once(struct question *q, const struct iovec *text, void *answer, size_t *answer_size,
                    int before)
{
    void *ctx = zmq_ctx_new();
    if (!ctx)
        return link_errno();
    q->begun = gp_clock_ns();
    int rc = ask_open(q, ctx, before < ASK_DOUBLINGS ? before : ASK_DOUBLINGS);
    if (rc == 0 && zmq_send(q->link.socket, text->iov_base, text->iov_len, ZMQ_DONTWAIT) < 0)
        rc = link_errno();
    if (rc == 0)
        rc = answer_wait(q, answer, answer_size, before + 1 >= ASK_BREAKS);
    q->connected |= q->link.connected;
    link_close(&q->link, 0);
    link_context_end(ctx);
    return rc;
}

int gpz_ask(const char *url, const void *question, size_t question_size, void *answer,
            size_t *answer_size, int timeout_ms, struct gp_error *err)
{
    char plain[2 * LINK_ENDPOINT_MAX];
    struct question q = {
        .url = plain,
        .timeout_ms = timeout_ms,
        .deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000),
    };
    q.reach = gp_deadline_us((int64_t)gp_reach_ms(q.deadline) * 1000);
    struct iovec text = {(void *)(uintptr_t)question, question_size};
    int rc = link_query_parse(url, false, plain, &q.curve, NULL, err);
    if (rc)
        return rc;
    if ((rc = link_room()) != 0)
        return question_fail(&q, rc, err);
    rc = strlen(plain) < LINK_ENDPOINT_MAX ? -EAGAIN : -EINVAL;
    for (int i = 0; rc == -EAGAIN; i++) {
        usleep(i ? ASK_PAUSE_US : 0);
        rc = ask_once(&q, &text, answer, answer_size, i);
        if (rc == -EAGAIN && gp_deadline_left_ms(q.deadline, 1000) == 0)
            rc = -ETIMEDOUT;
    }
    return rc ? question_fail(&q, rc, err) : 0;
}
