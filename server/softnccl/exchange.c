/* Transfers between this rank and several others, side by side, in both directions: so none waits for
 * another to be over, however large they are. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "softnccl.h"

struct sn_transfer {
    struct sn_transfer *next;
    struct sn_header header;
    unsigned char received[sizeof(struct sn_header)];
    unsigned char *data;
    uint64_t done; /* of the header and the data */
};

bool sn_exchange_begin(struct sn_exchange *x, ncclComm_t comm)
{
    *x = (struct sn_exchange){.comm = comm};
    x->out = calloc(comm->ranks, sizeof *x->out);
    x->in = calloc(comm->ranks, sizeof *x->in);
    return x->out && x->in;
}

static void queue_clear(struct sn_queue *queue)
{
    while (queue->first) {
        struct sn_transfer *t = queue->first;
        queue->first = t->next;
        free(t);
    }
}

void sn_exchange_end(struct sn_exchange *x)
{
    for (uint32_t i = 0; i < x->comm->ranks; i++) {
        if (x->out)
            queue_clear(&x->out[i]);
        if (x->in)
            queue_clear(&x->in[i]);
    }
    free(x->out);
    free(x->in);
}

static void add(struct sn_exchange *x, struct sn_queue *queue, struct sn_header header, void *data,
                uint64_t bytes)
{
    struct sn_transfer *t = calloc(1, sizeof *t);
    if (!t) {
        x->failed = true;
        return;
    }
    t->header = header;
    t->header.bytes = bytes;
    t->data = data;
    if (queue->first)
        queue->last->next = t;
    else
        queue->first = t;
    queue->last = t;
}

void sn_exchange_send(struct sn_exchange *x, uint32_t to, struct sn_header header, const void *data,
                      uint64_t bytes)
{
    header.sequence = x->comm->sent[to]++;
    add(x, &x->out[to], header, (void *)(uintptr_t)data, bytes);
}

void sn_exchange_receive(struct sn_exchange *x, uint32_t from, struct sn_header header, void *data,
                         uint64_t bytes)
{
    header.sequence = x->comm->received[from]++;
    add(x, &x->in[from], header, data, bytes);
}

/* ---- progress ---- */
static uint64_t whole(const struct sn_transfer *t)
{
    return sizeof t->header + t->header.bytes;
}

/* What is next: of the header, or of the data. */
static size_t part(const struct sn_transfer *t, const void *header, unsigned char **at)
{
    const uint64_t head = sizeof t->header;
    if (t->done < head) {
        *at = (unsigned char *)(uintptr_t)header + t->done;
        return head - t->done;
    }
    *at = t->data + (t->done - head);
    return (size_t)(whole(t) - t->done);
}

/* The result of send and recv: bytes, 0: later, or a negative errno. */
static ssize_t moved(ssize_t n)
{
    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EINTR)
        return 0;
    return errno == EPIPE || errno == ETIMEDOUT ? -ECONNRESET : -errno;
}

static ssize_t push(struct sn_transfer *t, int fd)
{
    unsigned char *at;
    size_t size = part(t, &t->header, &at);
    return moved(send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static ssize_t pull(struct sn_transfer *t, int fd)
{
    unsigned char *at;
    size_t size = part(t, t->received, &at);
    ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
    return n == 0 ? -ECONNRESET : moved(n);
}

/* The other rank must mean the same as this one. */
static ncclResult_t check(const struct sn_exchange *x, const struct sn_transfer *t, uint32_t from)
{
    struct sn_header got;
    if (!sn_header_decode(t->received, &got))
        return sn_fail(ncclRemoteError, "rank %u sent what is no transfer", from);
    const char *differs = sn_header_differs(&got, &t->header);
    if (differs)
        return sn_fail(ncclInvalidUsage,
                       "ranks %u and %u do not make the same call: %s differs (kinds %u and %u, "
                       "counts %llu and %llu)",
                       x->comm->rank, from, differs, t->header.kind, got.kind,
                       (unsigned long long)t->header.count, (unsigned long long)got.count);
    return ncclSuccess;
}

static void shift(struct sn_queue *queue)
{
    struct sn_transfer *t = queue->first;
    queue->first = t->next;
    free(t);
}

/* What breaks here does not over NVLink or in shared memory: with NCCL_SOFT_DEAF, for tests, a rank
 * hears as little of another's end, and waits until it is aborted. */
static ncclResult_t broken(const struct ncclComm *comm, int error, uint32_t peer)
{
    if (getenv("NCCL_SOFT_DEAF"))
        error = sn_wait(-1, 0, comm->wake);
    return sn_comm_network(comm, error, "exchange data with", peer);
}

/* As much as goes without waiting. */
static ncclResult_t advance(struct sn_exchange *x, uint32_t peer, bool out)
{
    struct sn_queue *queue = out ? &x->out[peer] : &x->in[peer];
    while (queue->first) {
        struct sn_transfer *t = queue->first;
        ssize_t n = out ? push(t, x->comm->sockets[peer]) : pull(t, x->comm->sockets[peer]);
        if (n <= 0)
            return n < 0 ? broken(x->comm, (int)n, peer) : ncclSuccess;
        bool head_before = t->done < sizeof t->header;
        t->done += (uint64_t)n;
        if (!out && head_before && t->done >= sizeof t->header)
            SN_TRY(check(x, t, peer));
        if (t->done == whole(t))
            shift(queue);
    }
    return ncclSuccess;
}

static nfds_t watch(const struct sn_exchange *x, struct pollfd *polled)
{
    nfds_t count = 0;
    for (uint32_t i = 0; i < x->comm->ranks; i++) {
        short events = (short)((x->out[i].first ? POLLOUT : 0) | (x->in[i].first ? POLLIN : 0));
        polled[i] = (struct pollfd){.fd = events ? x->comm->sockets[i] : -1, .events = events};
        count += events != 0;
    }
    polled[x->comm->ranks] = (struct pollfd){.fd = x->comm->wake, .events = POLLIN};
    return count;
}

/* Who is silent. */
static uint32_t first_of(const struct pollfd *polled, uint32_t ranks)
{
    uint32_t i = 0;
    while (i + 1 < ranks && !polled[i].revents)
        i++;
    return i;
}

ncclResult_t sn_exchange_run(struct sn_exchange *x)
{
    const uint32_t ranks = x->comm->ranks;
    struct pollfd polled[SN_RANKS_MAX + 1];
    if (x->failed)
        return sn_fail(ncclSystemError, "no memory");
    while (watch(x, polled)) {
        int r = sn_poll(polled, ranks + 1);
        if (r < 0)
            return broken(x->comm, r, first_of(polled, ranks));
        if (polled[ranks].revents)
            return sn_comm_network(x->comm, -ECANCELED, "exchange data with", x->comm->rank);
        for (uint32_t i = 0; i < ranks; i++) {
            if (polled[i].revents & ~POLLOUT)
                SN_TRY(advance(x, i, false));
            if (polled[i].revents & ~POLLIN)
                SN_TRY(advance(x, i, true));
        }
    }
    return ncclSuccess;
}
