/*
 * What a transport carries between two processes, without CUDA: one line of JSON.
 *
 *   bench_transports PLUGINS URL [SECONDS_EACH]
 *
 * URL is where to listen: ucx://127.0.0.1:*, plain://…, tls://…, tcp://…. `round_trip_us` is the
 * median of messages of 64 bytes there and back, one after the other; `gb_s` is 10^9 bytes a
 * second of messages of 1 MiB, one way, the next before the last has come.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/support.h"

#define PATIENCE_MS 20000
#define ROUNDS_MOST 200000
#define SMALL 64
#define LARGE ((size_t)1 << 20)

/* What the first bytes of a message ask its receiver to do. */
enum order { ORDER_ANSWER = 1, ORDER_KEEP, ORDER_END };

static const struct gp_transport *tp;
static struct gp_error err;
static unsigned char bytes[LARGE];

static void fail(const char *what, int rc)
{
    fprintf(stderr, "bench_transports: %s: %s\n", what, rc < 0 ? strerror(-rc) : "");
    if (err.text[0])
        fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static void say(struct gp_channel *ch, enum order order, size_t size)
{
    memset(bytes, 0, sizeof(struct gp_header));
    bytes[0] = (unsigned char)order;
    const struct iovec one = {.iov_base = bytes, .iov_len = size};
    int rc = tp->send(ch, &one, 1, 0);
    if (rc)
        fail("send", rc);
}

static enum order hear(struct gp_channel *ch)
{
    const void *message;
    size_t size;
    int rc = tp->recv(ch, (int64_t)PATIENCE_MS * 1000, &message, &size);
    if (rc)
        fail("recv", rc);
    enum order order = *(const unsigned char *)message;
    tp->release(ch);
    return order;
}

static int answer(struct gp_listener *l)
{
    struct gp_channel *ch = NULL;
    int rc = tp->accept(l, PATIENCE_MS, &ch, &err);
    if (rc)
        fail("accept", rc);
    enum order order;
    while ((order = hear(ch)) != ORDER_END)
        if (order == ORDER_ANSWER)
            say(ch, ORDER_KEEP, SMALL);
    tp->close(ch);
    tp->listener_close(l);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double round_trip_us(struct gp_channel *ch, int64_t ns)
{
    static double times[ROUNDS_MOST];
    int64_t begin = gp_clock_ns();
    int n = 0;
    while (n < ROUNDS_MOST && (n < 100 || gp_clock_ns() - begin < ns)) {
        int64_t at = gp_clock_ns();
        say(ch, ORDER_ANSWER, SMALL);
        hear(ch);
        times[n++] = (double)(gp_clock_ns() - at) / 1e3;
    }
    qsort(times, (size_t)n, sizeof times[0], by_value);
    return times[n / 2];
}

static double gb_s(struct gp_channel *ch, int64_t ns)
{
    int64_t begin = gp_clock_ns();
    uint64_t sent = 0;
    while (sent < 16 || gp_clock_ns() - begin < ns) {
        say(ch, ORDER_KEEP, LARGE);
        sent++;
    }
    say(ch, ORDER_ANSWER, SMALL); /* behind all of them */
    hear(ch);
    return (double)(sent * LARGE) / (double)(gp_clock_ns() - begin);
}

static int ask(const char *url, int64_t ns)
{
    struct gp_channel *ch = NULL;
    int rc = tp->connect(url, PATIENCE_MS, &ch, &err);
    if (rc)
        fail("connect", rc);
    (void)gb_s(ch, ns / 4); /* memory is made known and rails are made at the first */
    double trip = round_trip_us(ch, ns), rate = gb_s(ch, ns);
    printf("{\"transport\": \"%s\", \"round_trip_us\": %.2f, \"gb_s\": %.3f}\n", tp->name, trip,
           rate);
    say(ch, ORDER_END, SMALL);
    tp->close(ch);
    return 0;
}

int main(int argc, char **argv)
{
    char url[512] = "";
    int pipes[2], status = -1;
    if (argc < 3)
        fail("usage: bench_transports PLUGINS URL [SECONDS_EACH]", 0);
    int64_t ns = (int64_t)((argc > 3 ? atof(argv[3]) : 1.0) * 1e9);
    if (pipe(pipes) != 0)
        fail("pipe", -errno);
    pid_t pid = fork(); /* before either has anything of a transport */
    tp = gp_transport_find(argv[2], argv[1], &err);
    if (!tp)
        fail("no transport", 0);
    if (pid == 0) {
        struct gp_listener *l = NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int rc = tp->listen(argv[2], &l, &err);
        if (rc)
            fail("listen", rc);
        snprintf(url, sizeof url, "%s", tp->listener_url(l));
        if (write(pipes[1], url, sizeof url) != sizeof url)
            fail("write", -errno);
        return answer(l);
    }
    close(pipes[1]);
    if (read(pipes[0], url, sizeof url) != sizeof url)
        return 1; /* it has said why */
    int rc = ask(url, ns);
    waitpid(pid, &status, 0);
    return rc || status ? 1 : 0;
}
