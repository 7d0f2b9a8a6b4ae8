/*
 * What a transport adds to its socket, without a GPU: round trips and bulk over loopback between
 * two processes, as one line of JSON.
 *
 *   bench_sockets WAY [SECONDS_EACH]
 *
 * WAY is "bare" (sockets alone, the figure to compare with) or a URL to listen at, such as
 * plain://127.0.0.1:*. Bulk is in messages of 1 MiB, each of which its receiver takes whole, as
 * workers do: over so many sockets, or channels, with a thread at each end of each. bulk_one is one
 * channel beside four bare sockets, and the round trip one with whichever way of waiting the
 * transport has. Figures are the best of several rounds: others on the machine only ever take.
 * _cpu_us are the processors' time at both ends, of a round trip where the bare socket blocks and of
 * 1 MiB in one connection, which a busy machine disturbs least. bulk_N is of one piece of memory at
 * each end, which stays in the processors' caches; bulk_cold_N of as much as a user's long copy has,
 * which does not: what a copy through sockets can reach.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/transport.h"
#include "wire/wire.h"

enum { MOST = 8, ROUNDS = 5, TRIPS_AT_ONCE = 50, PATIENCE_MS = 20000 };
#define PIECE ((size_t)1 << 20)
#define SMALL 64

static const struct gp_transport *transport; /* NULL: bare sockets */
static const char *way;
static double seconds_each = 0.3;
/* Pieces that each connection sends, and receives into, in turn. */
static size_t pieces = 1;
enum { COLD_PIECES = 64 };

/* One connection's end. */
struct end {
    int fd;
    struct gp_channel *channel;
    bool polls;
};

/* What the other process is to do with its ends. */
enum task { ECHO = 1, ECHO_POLLING, SWALLOW };

static void stop(const char *what)
{
    fprintf(stderr, "bench_sockets: %s: %m\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of this process and of those that it has waited for. */
static double processors(void)
{
    double sum = 0;
    static const int whose[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    for (int i = 0; i < 2; i++) {
        struct rusage u;
        getrusage(whose[i], &u);
        sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    }
    return sum;
}

/* A figure, and the processors' time for each of what it counts. */
struct cost {
    double best, cpu_us;
};

/* --- one end --------------------------------------------------------------- */

static void end_send(struct end *e, void *bytes, size_t size)
{
    struct iovec one = {bytes, size};
    if (e->channel) {
        if (transport->send(e->channel, &one, 1, 0) != 0)
            stop("send");
        return;
    }
    for (size_t at = 0; at < size;) {
        ssize_t n = send(e->fd, (char *)bytes + at, size - at, MSG_NOSIGNAL);
        if (n <= 0)
            stop("send");
        at += (size_t)n;
    }
}

static bool bare_recv(struct end *e, void *to, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = recv(e->fd, (char *)to + at, size - at, e->polls ? MSG_DONTWAIT : 0);
        if (n == 0)
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* False at the end of the connection. */
static bool end_recv(struct end *e, void *to, size_t size)
{
    const void *message;
    if (!e->channel)
        return bare_recv(e, to, size);
    if (transport->recv(e->channel, -1, &message, &size) != 0)
        return false;
    transport->release(e->channel);
    return true;
}

static void end_close(struct end *e)
{
    if (e->channel)
        transport->close(e->channel);
    else
        close(e->fd);
}

/* --- connections ------------------------------------------------------------- */

static void nodelay(int fd)
{
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* Listen, say the address in `out`, and take one. */
static void take(struct end *e, int out)
{
    char url[256] = "";
    if (transport) {
        struct gp_listener *l;
        struct gp_error err;
        if (transport->listen(way, &l, &err) != 0)
            stop(err.text);
        snprintf(url, sizeof url, "%s", transport->listener_url(l));
        if (write(out, url, sizeof url) != sizeof url ||
            transport->accept(l, PATIENCE_MS, &e->channel, &err) != 0)
            stop("accept");
        transport->listener_close(l);
        return;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (void *)&a, size) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (void *)&a, &size) != 0)
        stop("listen");
    memcpy(url, &a, size);
    if (write(out, url, sizeof url) != sizeof url || (e->fd = accept(fd, NULL, NULL)) < 0)
        stop("accept");
    nodelay(e->fd);
    close(fd);
}

static void join(struct end *e, int in)
{
    char url[256];
    struct gp_error err = {.text = "no address"};
    if (read(in, url, sizeof url) != sizeof url)
        stop("no address");
    if (transport) {
        if (transport->connect(url, PATIENCE_MS, &e->channel, &err) != 0)
            stop(err.text);
        return;
    }
    struct sockaddr_in a;
    memcpy(&a, url, sizeof a);
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(e->fd, (void *)&a, sizeof a) != 0)
        stop("connect");
    nodelay(e->fd);
}

/* --- the other process --------------------------------------------------------- */

static void *echo_main(void *arg)
{
    struct end *e = arg;
    uint64_t bytes[SMALL / 8] = {SMALL};
    while (end_recv(e, bytes, SMALL))
        end_send(e, bytes, SMALL);
    return NULL;
}

static char *memory_of_pieces(void)
{
    char *bytes = aligned_alloc(4096, pieces * PIECE);
    if (!bytes)
        stop("memory");
    memset(bytes, 1, pieces * PIECE);
    return bytes;
}

static void *swallow_main(void *arg)
{
    struct end *e = arg;
    uint64_t said[SMALL / 8] = {SMALL};
    char *bytes = memory_of_pieces();
    for (size_t i = 0; end_recv(e, bytes + i % pieces * PIECE, PIECE); i++)
        end_send(e, said, SMALL);
    free(bytes);
    return NULL;
}

/* All connections of one task, until they end. */
static void serve(enum task task, int count, int out)
{
    struct end ends[MOST] = {{.fd = -1}};
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++) {
        take(&ends[i], out);
        ends[i].polls = task == ECHO_POLLING;
    }
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, task == SWALLOW ? swallow_main : echo_main, &ends[i]))
            stop("pthread_create");
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        end_close(&ends[i]);
    }
}

struct peer {
    pid_t pid;
    int from;
};

static struct peer peer_start(enum task task, int count)
{
    int ways[2];
    if (pipe(ways) != 0)
        stop("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(ways[0]);
        serve(task, count, ways[1]);
        _exit(0);
    }
    close(ways[1]);
    return (struct peer){pid, ways[0]};
}

static void peer_end(struct peer *p)
{
    waitpid(p->pid, NULL, 0);
    close(p->from);
}

/* --- figures ----------------------------------------------------------------- */

static struct cost round_trip(bool polls)
{
    double spent = processors(), trips = 0;
    struct peer peer = peer_start(polls ? ECHO_POLLING : ECHO, 1);
    struct end e = {.polls = polls};
    uint64_t bytes[SMALL / 8] = {SMALL};
    double best = 1e9, end = now() + seconds_each;
    join(&e, peer.from);
    while (now() < end) {
        double begin = now();
        for (int i = 0; i < TRIPS_AT_ONCE; i++) {
            end_send(&e, bytes, SMALL);
            end_recv(&e, bytes, SMALL);
        }
        double each = 1e6 * (now() - begin) / TRIPS_AT_ONCE;
        best = each < best ? each : best;
        trips += TRIPS_AT_ONCE;
    }
    end_close(&e);
    peer_end(&peer);
    return (struct cost){best, 1e6 * (processors() - spent) / trips};
}

struct pump {
    struct end end;
    pthread_barrier_t *together;
    double until, begin, over;
    size_t bytes;
};

/* So many pieces may be under way as a copy has. */
enum { WINDOW = 8 };

static void *pump_main(void *arg)
{
    struct pump *p = arg;
    uint64_t said[SMALL / 8];
    char *bytes = memory_of_pieces();
    size_t sent = 0, taken = 0;
    pthread_barrier_wait(p->together);
    p->begin = now();
    p->until = p->begin + seconds_each;
    while (now() < p->until || taken < sent) {
        while (sent - taken < WINDOW && now() < p->until) {
            end_send(&p->end, bytes + sent++ % pieces * PIECE, PIECE);
        }
        if (taken < sent && !end_recv(&p->end, said, SMALL))
            stop("recv");
        taken++;
    }
    p->over = now();
    p->bytes = sent * PIECE;
    free(bytes);
    return NULL;
}

static struct cost bulk_once(int count)
{
    double spent = processors();
    struct peer peer = peer_start(SWALLOW, count);
    struct pump pumps[MOST] = {{.bytes = 0}};
    pthread_t threads[MOST];
    pthread_barrier_t together;
    double bytes = 0, begin = 1e18, over = 0;
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        join(&pumps[i].end, peer.from);
        pumps[i].together = &together;
    }
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, pump_main, &pumps[i]))
            stop("pthread_create");
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        end_close(&pumps[i].end);
        bytes += (double)pumps[i].bytes;
        begin = pumps[i].begin < begin ? pumps[i].begin : begin;
        over = pumps[i].over > over ? pumps[i].over : over;
    }
    pthread_barrier_destroy(&together);
    peer_end(&peer);
    return (struct cost){1e-9 * bytes / (over - begin),
                         1e6 * (processors() - spent) / (bytes / (double)PIECE)};
}

static struct cost bulk(int count, size_t so_many)
{
    pieces = so_many;
    struct cost most = {0, 1e9};
    for (int i = 0; i < ROUNDS; i++) {
        struct cost one = bulk_once(count);
        most.best = one.best > most.best ? one.best : most.best;
        most.cpu_us = one.cpu_us < most.cpu_us ? one.cpu_us : most.cpu_us;
    }
    return most;
}

int main(int argc, char **argv)
{
    struct gp_error err;
    way = argc > 1 ? argv[1] : "";
    if (argc > 2)
        seconds_each = atof(argv[2]);
    if (argc < 2 || seconds_each <= 0 || seconds_each > 60) {
        fprintf(stderr, "usage: bench_sockets bare|URL [SECONDS_EACH (0..60)]\n");
        return 2;
    }
    if (strcmp(way, "bare") != 0) {
        transport = gp_transport_find(way, getenv("GPUPOOL_PLUGIN_DIR"), &err);
        if (!transport) {
            fprintf(stderr, "bench_sockets: %s\n", err.text);
            return 1;
        }
    }
    struct cost polling = round_trip(true), blocking = transport ? polling : round_trip(false);
    struct cost rate[MOST + 1], cold[MOST + 1];
    for (int n = 1; n <= MOST; n *= 2) {
        rate[n] = bulk(n, 1);
        cold[n] = bulk(n, COLD_PIECES);
    }
    printf("{\"round_trip_polling_us\": %.6g, \"round_trip_blocking_us\": %.6g", polling.best,
           blocking.best);
    printf(", \"round_trip_cpu_us\": %.6g", blocking.cpu_us);
    printf(", \"bulk_one_gb_s\": %.6g", rate[transport ? 1 : 4].best);
    printf(", \"bulk_1m_cpu_us\": %.6g", rate[1].cpu_us);
    for (int n = 1; n <= MOST; n *= 2)
        printf(", \"bulk_%d_gb_s\": %.6g, \"bulk_cold_%d_gb_s\": %.6g", n, rate[n].best, n,
               cold[n].best);
    printf("}\n");
    return 0;
}
