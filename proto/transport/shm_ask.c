/*
 * A question to a server at the socket where it gives shared memory: one datagram, and one
 * with the answer. Who can get to the socket needs no network to the server.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/shm_channel.h"

static int ask_fail(const char *url, int rc, struct gp_error *err)
{
    if (rc == -EPIPE || rc == -ECONNRESET || rc == -EPROTOTYPE || rc == -ENOTSOCK) {
        gp_error_set(err,
                     "what listens at %.120s does not answer: it does not admit this user "
                     "(shm_allow), or is no gpupool-server",
                     url);
        return -EPROTO;
    }
    if (rc == -EMSGSIZE || rc == -EINVAL)
        gp_error_set(err, "%.120s: the question or its answer is too long", url);
    else if (rc == -ETIMEDOUT || rc == -EAGAIN)
        gp_error_set(err, "the server at %.120s says nothing; is it stopped?", url);
    else
        gp_error_set(err,
                     "no gpupool server answers at %.120s: %s; is gpupool-server running, and "
                     "in a container, is the socket's folder mounted?",
                     url, strerror(-rc));
    return rc == -EAGAIN ? -ETIMEDOUT : rc == -ENOENT || rc == -EACCES ? -ECONNREFUSED : rc;
}

static int answer_wait(int sock, void *answer, size_t *size, int64_t deadline)
{
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        int left = gp_deadline_left_ms(deadline, 1 << 30);
        int ready = poll(&p, 1, left);
        if (ready == 0)
            return -ETIMEDOUT;
        if (ready < 0 && errno == EINTR)
            continue;
        /* Without room for descriptors the kernel closes what a hostile server sends. */
        ssize_t n = recv(sock, answer, *size, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EPIPE;
        if ((size_t)n > *size)
            return -EMSGSIZE;
        *size = (size_t)n;
        return 0;
    }
}

int shm_ask(const char *url, const void *question, size_t question_size, void *answer,
            size_t *answer_size, int timeout_ms, struct gp_error *err)
{
    struct sockaddr_un address;
    if (strncmp(url, "unix:///", strlen("unix:///")) != 0 || strchr(url, '?')) {
        gp_error_set(err,
                     "'%.150s' is not a server's address: write tcp://HOST:PORT or "
                     "unix:///PATH",
                     url);
        return -EINVAL;
    }
    int rc = shm_address_parse(url, &address, err);
    if (rc)
        return rc;
    int64_t deadline = gp_deadline_us((int64_t)timeout_ms * 1000);
    int sock = -1;
    rc = shm_socket_connect(&address, timeout_ms, &sock);
    if (rc)
        return ask_fail(url, rc, err);
    if (send(sock, question, question_size, MSG_NOSIGNAL) != (ssize_t)question_size)
        rc = -errno;
    size_t got = *answer_size;
    if (rc == 0)
        rc = answer_wait(sock, answer, &got, deadline);
    close(sock);
    if (rc)
        return ask_fail(url, rc, err);
    *answer_size = got;
    return 0;
}
