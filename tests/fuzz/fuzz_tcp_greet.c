/*
 * What is said to somebody who listens with our own TCP, by who knows the word and by who
 * does not, and what is said to who connects. Nobody is let in who could not have known the
 * word, and nothing stays open.
 *
 * The first byte says who is spoken to and after what beginning; the rest is said.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/hex.h"
#include "transport/tcp_channel.h"

#define WORD "00112233445566778899aabbccddeeff"
#define FRAMES_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum to {
    TO_PLAIN_STRANGER,
    TO_TLS_STRANGER,
    TO_PLAIN,
    TO_TLS,
    TO_CHANNEL,
    TO_CLIENT,
    TO_CLIENT_TLS,
    TOS
};

static unsigned char word[DOOR_WORD_BYTES];

static void say(int fd, const void *bytes, size_t size)
{
    (void)!send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The channel that was let in reads on until it has heard enough. */
static void channel_hear(struct gp_channel *ch)
{
    const struct gp_transport *tp = &gp_transport_tcp;
    const void *message;
    size_t size;
    for (int i = 0; i < FRAMES_MAX && tp->recv(ch, 0, &message, &size) == 0; i++) {
        if (size < 16 || size > GP_MESSAGE_MAX)
            abort();
        tp->release(ch);
    }
    tp->close(ch);
}

static int stranger_dial(const char *url)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&a, sizeof a) != 0)
        abort();
    return fd;
}

static void listener_hear(enum to to, const uint8_t *data, size_t size)
{
    const struct gp_transport *tp = &gp_transport_tcp;
    bool tls = to == TO_TLS || to == TO_TLS_STRANGER;
    struct gp_listener *l = NULL;
    struct gp_channel *ch = NULL;
    struct door_knocked k = {.fd = -1};
    unsigned char body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    if (tp->listen(tls ? "tls://127.0.0.1:*?door=" WORD : "plain://127.0.0.1:*?door=" WORD, &l,
                   NULL) != 0)
        abort();
    char endpoint[GP_ENDPOINT_MAX];
    const char *url = tp->listener_url(l);
    snprintf(endpoint, sizeof endpoint, "%.*s", (int)strcspn(url, "?"), url);
    if (to == TO_PLAIN || to == TO_TLS || to == TO_CHANNEL) {
        if (door_knock(endpoint, word, gp_deadline_us(1000000), &k) != 0)
            abort();
    } else {
        k.fd = stranger_dial(endpoint);
    }
    if (to == TO_CHANNEL) {
        (void)tp->accept(l, 0, &ch, NULL);
        if (door_hear_answer(&k, word, gp_deadline_us(1000000), sizeof body, body) != 0)
            abort();
        door_confirm(&k, word, body, proof);
        say(k.fd, proof, sizeof proof);
    }
    say(k.fd, data, size);
    shutdown(k.fd, SHUT_WR);
    for (int i = 0; i < 3 && !ch; i++)
        if (tp->accept(l, 0, &ch, NULL) == -ENOTSUP)
            abort();
    if (ch && to != TO_CHANNEL)
        abort(); /* it cannot have known what to say */
    if (ch)
        channel_hear(ch);
    tp->listener_close(l);
    close(k.fd);
}

static void client_hear(bool tls, const uint8_t *data, size_t size)
{
    unsigned char body[DOOR_BODY_BYTES], key[DOOR_PROOF_BYTES];
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    say(ends[1], data, size);
    shutdown(ends[1], SHUT_WR);
    if (tls) {
        struct tcp_tls *t = NULL;
        door_key(word, key);
        if (tcp_tls_new(key, false, &t) != 0 || tcp_tls_pump(t, ends[0]) == 0)
            abort();
        tcp_tls_free(t);
    } else {
        struct door_knocked k = {.fd = ends[0]};
        if (door_hear_answer(&k, word, gp_deadline_us(1000000), sizeof body, body) == 0)
            abort();
    }
    close(ends[0]);
    close(ends[1]);
}

static int lowest_free(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || gp_hex_read(WORD, word, sizeof word) != 0)
        return 0;
    enum to to = data[0] % TOS;
    int before = lowest_free();
    if (to == TO_CLIENT || to == TO_CLIENT_TLS)
        client_hear(to == TO_CLIENT_TLS, data + 1, size - 1);
    else
        listener_hear(to, data + 1, size - 1);
    if (lowest_free() != before)
        abort(); /* something of it is open */
    return 0;
}
