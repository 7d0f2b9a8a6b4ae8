/* The socket of a channel of tcp's, or of a lane: without waiting, and waiting for it. */
#ifndef GP_TCP_SOCKET_H
#define GP_TCP_SOCKET_H

#include "transport/silence.h"
#include "transport/support.h"

/* A connected socket that may lie in somebody else's process. */
struct tcp_socket {
    int fd;
    struct gp_fd_mark mark; /* on the connecting side */
    int64_t silence_ms;
    _Atomic int64_t looked_ns; /* when the peer was last looked at */
};

/* What is not 0 here: -EPIPE, -EBADF the program has closed it. */
void tcp_socket_init(struct tcp_socket *s, int fd, const struct gp_silence *silence, bool accepted);
bool tcp_socket_is_ours(const struct tcp_socket *s);
/* Send without waiting: bytes (> 0), -EAGAIN, -EPIPE, -EBADF. */
ssize_t tcp_socket_send(struct tcp_socket *s, const struct iovec *iov, int count);
/* Likewise; -EPIPE also at its end, -EFAULT no byte can be written there. */
ssize_t tcp_socket_recv(struct tcp_socket *s, void *to, size_t size);
/* Whether to try, from a thread that asks again and again: cheaper than trying for who must see
 * each time whether the descriptor is still ours. */
bool tcp_socket_may_recv(const struct tcp_socket *s);
/* Sleep until `events` (of poll) or the end, at most until `deadline` and never for long. */
int tcp_socket_wait(struct tcp_socket *s, short events, int64_t deadline);
/* Whether the peer is known to be gone, looked at now and then only: 0, -EPIPE, -EBADF. */
int tcp_socket_glance(struct tcp_socket *s);
/* Wait until the peer's kernel has what was sent; what comes meanwhile is let go of if `drops`.
 * From then on the end of the socket is one in order. */
void tcp_socket_settle(struct tcp_socket *s, bool drops, int64_t deadline);
/* Say that no more comes, and settle. */
void tcp_socket_finish(struct tcp_socket *s, int64_t deadline);
/* shutdown(), of what is ours. */
void tcp_socket_shut(struct tcp_socket *s, int how);
/* Take `n` bytes off the front of a list. */
void tcp_list_advance(struct iovec **list, int *count, size_t n);

#endif
