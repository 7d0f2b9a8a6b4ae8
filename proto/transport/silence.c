#include "transport/silence.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

#define SILENCE_S 90
#define SILENCE_MIN_S 2
#define SILENCE_MAX_S 86400
#define IDLE_MOST_S 20
#define INTERVAL_MOST_S 10
/* How long the kernel may wait before it asks again: so often in a silence, and what it
 * takes. Linux 6.15 knows the option; before, it is 2 minutes. */
#define ASKS_IN_A_SILENCE 3
#define ASK_LEAST_MS 1000
#define ASK_MOST_MS 120000
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

static int share_of(int seconds, int part, int most)
{
    int value = seconds / part > 0 ? seconds / part : 1;
    return value < most ? value : most;
}

static void silence_set(struct gp_silence *out, int seconds)
{
    *out = (struct gp_silence){.seconds = seconds,
                               .idle = share_of(seconds, 3, IDLE_MOST_S),
                               .interval = share_of(seconds, 6, INTERVAL_MOST_S)};
}

int gp_silence_read(struct gp_silence *out, struct gp_error *err)
{
    const char *text = getenv("GPUPOOL_SILENCE");
    silence_set(out, SILENCE_S);
    if (!text || !*text)
        return 0;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < SILENCE_MIN_S || value > SILENCE_MAX_S) {
        gp_error_set(err, "GPUPOOL_SILENCE=%.40s: must be a whole number of seconds, %d to %d",
                     text, SILENCE_MIN_S, SILENCE_MAX_S);
        return -EINVAL;
    }
    silence_set(out, (int)value);
    return 0;
}

static void option_set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

static int ask_ms(const struct gp_silence *silence)
{
    int64_t ms = (int64_t)silence->seconds * 1000 / ASKS_IN_A_SILENCE;
    return ms < ASK_LEAST_MS ? ASK_LEAST_MS : ms < ASK_MOST_MS ? (int)ms : ASK_MOST_MS;
}

/*
 * Probes tell of a peer that vanishes while nothing is under way; of one that vanishes while
 * something is, gp_silence_is_over. Not TCP_USER_TIMEOUT: it also ends a connection whose peer
 * is there and takes nothing for so long, as a busy one may.
 */
void gp_silence_set(int fd, const struct gp_silence *silence)
{
    int probes = (silence->seconds - silence->idle) / silence->interval;
    option_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    option_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, silence->idle);
    option_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, silence->interval);
    option_set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes < 1 ? 1 : probes < 127 ? probes : 127);
    option_set(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, ask_ms(silence));
}

bool gp_silence_is_over(int fd, int64_t silence_ms)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int under_way = 0;
    return ioctl(fd, SIOCOUTQ, &under_way) == 0 && under_way > 0 &&
           getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_retransmits + info.tcpi_probes > 1 &&
           (int64_t)info.tcpi_last_ack_recv > silence_ms;
}
