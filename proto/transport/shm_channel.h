/*
 * The shared-memory transport, as its own files see it.
 *
 *   shm.c          a channel: sending, receiving, waiting, closing
 *   shm_connect.c  connecting: the socket, the knock, the memory, the hello
 *   shm_listen.c   listening: connections that are handed over, and their hellos
 *   shm_ask.c      a question to the server at whose socket clients connect
 *   shm_share.c    file descriptors over the socket: memory that both sides map
 *
 * A channel is one memfd, mapped by both sides, and one Unix socket. The memory
 * carries the messages. The socket carries file descriptors, and its end is how
 * each side learns that the other is gone.
 *
 * The memfd: a page group of control words, then the two rings.
 *   0                 struct gp_ring_shared, connecting side writes
 *   SHM_CONTROL/2     struct gp_ring_shared, accepting side writes
 *   SHM_CONTROL       bytes of the first ring
 *   + SHM_RING        bytes of the second
 */
#ifndef GP_SHM_CHANNEL_H
#define GP_SHM_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "transport/ring.h"
#include "transport/support.h"

#define SHM_CONTROL ((size_t)64 << 10)
#define SHM_RING ((size_t)8 << 20)
#define SHM_BYTES (SHM_CONTROL + 2 * SHM_RING)

#define SHM_MAGIC "gpupool-shm/1"
#define SHM_KNOCK_MAGIC "gpupool-door/1"

/* The first datagram at a server's socket: whose worker the connection is for. The server takes
 * this one alone, without descriptors, and hands the connection over. */
struct shm_knock {
    char magic[16];
    uint8_t word[16]; /* only the session's client was told it */
};

/* What travels over the socket. One datagram each (SOCK_SEQPACKET). */
enum shm_packet_kind {
    SHM_HELLO = 1, /* connecting side, with the memfd; bytes = SHM_BYTES */
    SHM_READY = 2, /* accepting side's answer */
    SHM_SHARE = 3, /* a share, with its memfd */
};
struct shm_packet {
    char magic[16];
    uint32_t kind;
    uint32_t zero;
    uint64_t bytes; /* size of the memory */
    uint64_t id;    /* of the share */
    uint64_t addr;  /* where the sender has mapped the share */
};

/* A share that came over the socket and nobody has asked for yet. */
struct shm_arrival {
    struct shm_arrival *next;
    uint64_t id;
    uint64_t addr;
    size_t bytes;
    int fd;
};

struct gp_channel {
    unsigned char *memory; /* SHM_BYTES, shared */
    int socket;
    struct gp_fd_mark mark; /* of the socket, on the connecting side */
    /* Of who connected; -1 where that is not known. A forked child of it that keeps the socket
     * open must not keep the session alive. On the connecting side the socket alone tells: who
     * handed it to the worker may go. */
    int peer_pidfd;
    unsigned generation;
    /* 0, or why the channel is dead. Set once. Relaxed everywhere: it carries
     * nothing but itself. */
    _Atomic int dead;
    _Atomic int64_t looked_ns; /* when the peer's life was last checked */

    struct gp_turnstile sending; /* writer, spin_send, relief */
    struct gp_relief relief;
    struct gp_ring_writer writer;
    struct gp_spin spin_send;

    /* One receiving thread at a time. */
    struct gp_ring_reader reader;
    struct gp_spin spin_recv;
    void *copy; /* the borrowed message, where no peer can change it */

    pthread_mutex_t share_lock; /* arrivals, next_id, arrival_count */
    struct shm_arrival *arrivals;
    unsigned arrival_count;
    uint64_t next_id;
};

/* shm_listen.c */
int shm_listen(const char *url, struct gp_listener **out, struct gp_error *err);
const char *shm_listener_url(const struct gp_listener *l);
int shm_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
               struct gp_error *err);
void shm_listener_close(struct gp_listener *l);

/* shm_connect.c */
int shm_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

/* Into `address` the path of an url, without what is behind a '?': 0, -EINVAL, -ENAMETOOLONG. */
int shm_address_parse(const char *url, struct sockaddr_un *address, struct gp_error *err);
/* A connection (SOCK_SEQPACKET), within `timeout_ms`; a negative errno. */
int shm_socket_connect(const struct sockaddr_un *address, int timeout_ms, int *out);

/* shm_ask.c */
int shm_ask(const char *url, const void *question, size_t question_size, void *answer,
            size_t *answer_size, int timeout_ms, struct gp_error *err);

/* shm.c: a channel over a mapped memory and a connected socket, both of which it
 * takes over on success only. */
int shm_channel_new(unsigned char *memory, int sock, bool accepted, struct gp_channel **out);
/* Mark the channel dead (unless it is) and wake whoever waits on it, here and there. */
void shm_channel_kill(struct gp_channel *ch, int why);

/* shm_share.c */
/* A sealed memory file of exactly `bytes`: nobody can make it smaller, so nobody
 * can make us fault; it has no name, and nobody else may open it by its descriptor in /proc.
 * The descriptor or a negative errno. */
int shm_memory_new(const char *name, size_t bytes);
/* 0 when `fd` is such a file of exactly `bytes`, else -EPROTO. */
int shm_memory_check(int fd, size_t bytes);
/* Send a packet with one descriptor (-1: none): 0, -EAGAIN (socket full), -EPIPE. */
int shm_packet_send(int sock, const struct shm_packet *packet, int fd);
/* Receive one without blocking: 0, -EAGAIN, -EPIPE (end), -EPROTO. `*fd` is -1 or
 * the caller's to close. */
int shm_packet_recv(int sock, struct shm_packet *packet, int *fd);
/* Take in the shares that wait on the socket: 0, -EPIPE at its end, -EPROTO. */
int shm_arrivals_read(struct gp_channel *ch);
void shm_arrivals_drop(struct gp_channel *ch);
int shm_share(struct gp_channel *ch, void *hint, size_t size, struct gp_share *out);
int shm_accept_share(struct gp_channel *ch, uint64_t id, struct gp_share *out);
void shm_unshare(struct gp_channel *ch, struct gp_share *share);

#endif
