/*
 * What gpupool asks of a way to carry messages: one table per transport.
 *
 * A *channel* is one connected pair (client, worker). Messages are byte strings
 * of 16..GP_MESSAGE_MAX bytes that arrive whole, once, and in the order in
 * which they were sent on that channel. Functions return 0 or a negative errno:
 *   -EAGAIN    nothing within the time given (only with a time-out)
 *   -EPIPE     the peer is gone; every later call says the same
 *   -EPROTO    the peer sent a malformed message; the channel is dead
 *   -EBADF     the program has closed the channel's descriptors; the channel is dead
 *   -EMSGSIZE  the message is shorter or longer than the limits; nothing sent
 *   -ENOMEM, -ENOTSUP
 * Output parameters are set only on success. A function that takes a
 * `struct gp_error *` fills it on failure with one line that says what
 * happened, where, and what to do; it may be NULL.
 *
 * Threads: `send` and `flush` may be called from any thread (the channel has a
 * lock of its own, never held while blocked on `recv`). `recv` and `release`
 * are for one thread at a time, which may change between calls if the caller
 * orders them (a mutex does). A send never deadlocks against a recv of the same
 * channel.
 */
#ifndef GP_TRANSPORT_H
#define GP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define GP_TRANSPORT_ABI 5u

struct gp_error {
    char text[320];
};
void gp_error_set(struct gp_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct gp_channel;
struct gp_listener;

enum gp_send_flags {
    /* More is coming soon: the message may wait in the channel until `flush`,
     * a send without this flag, a full batch, or 100 us, whichever is first. */
    GP_SEND_LATER = 1u << 0,
    /* The longest piece of the list stays as it is until `returned` counts the message, so the
     * channel need not take its bytes over before `send` returns, unless with an error. */
    GP_SEND_LENT = 1u << 1,
};

/* See `relieve`. True: something was received. */
typedef bool gp_relief_fn(void *owner);

enum gp_transport_caps {
    /* share/accept_share work: both sides can map the same memory. */
    GP_CAP_SHARE = 1u << 0,
};

/* The first bytes of a message, by which who receives knows it. */
#define GP_MESSAGE_HEAD 64
/* Where bytes [begin, begin + size) of a message belong. */
struct gp_landing {
    void *to;
    size_t begin, size;
};
/* See `land`. False: nowhere. */
typedef bool gp_land_fn(void *owner, const void *head, size_t size, struct gp_landing *out);

/* A piece of memory that both sides of a channel have mapped. `addr` is this
 * side's address; the two sides' addresses are equal when `same_address`. */
struct gp_share {
    void *addr;
    size_t size; /* bytes, a multiple of the page size */
    uint64_t id; /* names the share on its channel, never reused */
    bool same_address;
};

/* Until somebody takes a connection, over a network. Who has taken it may need longer to say
 * something: on a busy machine a process may not be run for many seconds. */
#define GP_REACH_MS 10000

struct gp_transport {
    uint32_t abi; /* GP_TRANSPORT_ABI */
    const char *name;
    const char *const *schemes; /* e.g. {"tcp://", "ipc://", NULL} */
    unsigned caps;

    /* Start to listen. `url` may leave the port or name to the transport
     * ("tcp://0.0.0.0:*", "inproc://name"; "shm://handed" alone, see shm_give.h);
     * "?key=own" behind a tcp:// address encrypts under a key pair of this process; tls://
     * encrypts, plain:// does not (tcp), nor does ucx://, and "?fd=N" behind these names a socket
     * that listens already and is the listener's from then on.
     * Never blocks. */
    int (*listen)(const char *url, struct gp_listener **out, struct gp_error *err);
    /* The address to connect to, with "?key=KEY" if it is encrypted; valid until the
     * listener is closed. */
    const char *(*listener_url)(const struct gp_listener *l);
    /* Wait for one peer. -EAGAIN after `timeout_ms` (-1: for ever). A zmq, tcp or ucx
     * listener takes one peer in its life, then -ENOTSUP. The channel outlives the
     * listener everywhere. */
    int (*accept)(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
                  struct gp_error *err);
    void (*listener_close)(struct gp_listener *l);

    /* Blocks up to `timeout_ms`, of these at most GP_REACH_MS until somebody takes the connection.
     * `url` is a listener's, or of who hands connections to one ("shm:///run/x.sock?door=WORD").
     * -ECONNREFUSED nobody listens or we may not, -EINVAL no address, -ETIMEDOUT nobody answers,
     * -EPROTO what answers is no gpupool, -EACCES one side encrypts and the other not, or the key
     * is wrong, -EHOSTUNREACH. */
    int (*connect)(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

    /* Send one message from a gather list of at most 8 pieces. The bytes are
     * taken over before it returns. Blocks while the peer is slow and the
     * channel is full; -EPIPE if the peer dies meanwhile. */
    int (*send)(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags);
    /* How many messages were sent so far that the channel may go on reading, and how many of these,
     * in the order in which they were sent, it does not read any more. From any thread. NULL where
     * a send always takes everything over. */
    uint64_t (*lent)(const struct gp_channel *ch);
    uint64_t (*returned)(const struct gp_channel *ch);
    /* Wait until all are returned, also after an error, which is `send`'s. NULL with those. */
    int (*take_back)(struct gp_channel *ch);
    /* Send what waits because of GP_SEND_LATER. -EPIPE if the peer is known to be gone,
     * also when there is nothing to send: who does not receive for long may ask so. */
    int (*flush)(struct gp_channel *ch);

    /* The process is about to end without `close`: wait until the peer's machine has what was
     * sent, at most one second. What is not there then may be lost, as with a process that is
     * killed. NULL where a process that ends takes back nothing. */
    void (*leave)(struct gp_channel *ch);

    /* Two peers that are both blocked in `send`, because neither receives, would stay so. What
     * is set here is called by a thread that is blocked in `send` or `flush` for want of room,
     * again and again: it receives what has come, unless another thread does so. It holds the
     * channel's sending lock, so it may not send. To be set before a second thread has the
     * channel, and at most once. NULL where a send never blocks. */
    void (*relieve)(struct gp_channel *ch, gp_relief_fn *relief, void *owner);

    /* Borrow the next message until `release` (exactly one at a time; the bytes
     * are 8-byte aligned). timeout_us: 0 polls (must be cheap: no system call
     * when nothing is there and the transport can avoid it), -1 waits for ever. */
    int (*recv)(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size);
    void (*release)(struct gp_channel *ch);

    /* Keep the borrowed message that `within` lies in: also after `release` its bytes stay as they
     * are, until `let_go` of an address in it, in any order. It begins a page, and GP_MESSAGE_MAX
     * bytes from there are memory of the channel's that comes again with later messages, so that to
     * pin it pays; of what is kept when the channel is closed nothing is given back. -EAGAIN: there
     * is no such message, or it cannot be kept now. NULL where none can. As `recv`, for one thread. */
    int (*keep)(struct gp_channel *ch, const void *within);
    void (*let_go)(struct gp_channel *ch, const void *within);

    /* Have the bulk of long messages written to where it belongs, not lent: `ask` is called with the
     * head of a message that is coming, on a thread of the channel's, and what it names must be the
     * channel's until the message has been released, or `ground` returns. It may block no longer than
     * a lock does, and may not call the channel. Once, before anything long is expected. NULL where
     * everything is lent. */
    void (*land)(struct gp_channel *ch, gp_land_fn *ask, void *owner);
    /* Whether that was done with the borrowed message: of it only the bytes before and behind those
     * are there. */
    bool (*landed)(const struct gp_channel *ch);
    /* Nothing is written there any more when it returns, and the channel is dead: whoever sends or
     * receives returns. */
    void (*ground)(struct gp_channel *ch);

    /* Shared memory (GP_CAP_SHARE only; NULL elsewhere). The sharing side makes
     * `size` bytes, mapped at `hint` if that is free (NULL: anywhere), and its
     * peer maps them with the id, at the same address if that is free there. The
     * id must reach the peer in a message after `share` returned. On the sharing
     * side `same_address` says that `hint` was kept; the peer's says how it went.
     * `accept_share` gives a share once; -ENOENT for any other id.
     * Both sides `unshare` what they mapped, before they close. */
    int (*share)(struct gp_channel *ch, void *hint, size_t size, struct gp_share *out);
    int (*accept_share)(struct gp_channel *ch, uint64_t id, struct gp_share *out);
    void (*unshare)(struct gp_channel *ch, struct gp_share *share);

    /* Send what is left for at most one second, then let go of everything.
     * After it the peer's calls give -EPIPE once it has drained its messages. */
    void (*close)(struct gp_channel *ch);

    /* One question to a server's front end and its one answer (zmq, and shm at
     * unix:///PATH; NULL elsewhere). Blocks, and its errors, as connect. The answer is at
     * most `*answer_size` bytes, which is set to its length. */
    int (*ask)(const char *url, const void *question, size_t question_size, void *answer,
               size_t *answer_size, int timeout_ms, struct gp_error *err);

    /* Whether what the transport needs of others is there: 0, -ENOTSUP and what to install.
     * NULL: it needs nothing that it was not opened with. */
    int (*ready)(struct gp_error *err);
};

/* The transport whose scheme `url` has, NULL and `err` otherwise. inproc and
 * shm are built in; zmq, tcp and ucx are plug-ins that are opened (RTLD_LOCAL) from
 * `plugin_dir`/libgpupool_zmq.so, libgpupool_tcp.so and libgpupool_ucx.so on first use.
 * Thread-safe. */
const struct gp_transport *gp_transport_find(const char *url, const char *plugin_dir,
                                             struct gp_error *err);

#endif
