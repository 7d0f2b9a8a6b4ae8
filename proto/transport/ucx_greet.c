#include "transport/ucx_greet.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

int ucx_hello_hear(struct ucx_hearing *h, int fd, enum ucx_side side, const struct ucx_proof *proof,
                   struct ucx_hello *out)
{
    int rc;
    /* No more than it: notes follow at once. */
    while ((rc = ucx_hello_read(h->bytes, h->got, side, proof, out)) == -EAGAIN) {
        size_t whole = h->got < sizeof *out ? sizeof *out
                                            : sizeof *out + out->address_size + DOOR_PROOF_BYTES;
        ssize_t n = recv(fd, h->bytes + h->got, whole - h->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return -EAGAIN;
        if (n <= 0)
            return -EPIPE;
        h->got += (size_t)n;
    }
    return rc;
}

int ucx_hello_say(struct gp_channel *ch, enum ucx_side side, const struct ucx_proof *proof)
{
    unsigned char *bytes = malloc(UCX_HELLO_MAX);
    void *address;
    size_t size;
    int rc = bytes ? ucx_engine_address(ch, &address, &size) : -ENOMEM;
    if (rc == 0) {
        size_t whole = ucx_hello_write(bytes, side, proof, ch->window.tag, address, size);
        ucx_engine_address_free(ch, address);
        /* It is among the first that is sent there, so there is room for it. */
        rc = send(ch->fd, bytes, whole, MSG_NOSIGNAL) == (ssize_t)whole ? 0 : -EPIPE;
    }
    free(bytes);
    return rc;
}

int ucx_greet(struct gp_channel *ch, const struct ucx_hearing *h, const struct ucx_hello *hello)
{
    ch->peer_tag = hello->tag;
    int rc = ucx_engine_connect(ch, h->bytes + sizeof *hello);
    if (rc == 0)
        ucx_engine_credit(ch);
    return rc;
}

int ucx_greeted(struct gp_channel *ch)
{
    ucx_engine_progress(ch);
    if (ch->greeted)
        return 0;
    struct pollfd p = {.fd = ch->fd, .events = POLLRDHUP};
    if (ch->send_dead || (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR))))
        return -EPIPE;
    return -EAGAIN;
}
