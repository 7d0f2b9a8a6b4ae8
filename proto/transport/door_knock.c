/* Knocking, and the proofs of both sides. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/dial.h"
#include "transport/door_internal.h"
#include "transport/hex.h"
#include "transport/support.h"
#include "wire/hmac.h"

/* --- proofs --------------------------------------------------------------- */

void door_prove(const unsigned char *word, enum proof_of what, const unsigned char *nonce,
                const void *body, size_t body_size, unsigned char proof[DOOR_PROOF_BYTES])
{
    static const char *const names[] = {
        [PROOF_KNOCK] = "knock",     [PROOF_ANSWER] = "answer", [PROOF_GREETING] = "greeting",
        [PROOF_CONFIRM] = "confirm", [PROOF_KEY] = "key",       [PROOF_LANES] = "lanes",
    };
    char label[24 + DOOR_NONCE_BYTES] = "";
    snprintf(label, 24, "gpupool door %s", names[what]);
    memcpy(label + 24, nonce, DOOR_NONCE_BYTES);
    gp_hmac(word, DOOR_WORD_BYTES, label, sizeof label, body, body_size, proof);
}

void door_nonce_of_greeting(const unsigned char *word, const unsigned char *nonce,
                            unsigned char out[DOOR_NONCE_BYTES])
{
    unsigned char proof[DOOR_PROOF_BYTES];
    door_prove(word, PROOF_GREETING, nonce, NULL, 0, proof);
    memcpy(out, proof, DOOR_NONCE_BYTES);
}

/* --- knocking ----- ------------------------------------------------------- */

static int answer_wait(int fd, int64_t deadline, struct answer *a)
{
    size_t got = 0;
    while (got < sizeof *a) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int left = gp_deadline_left_ms(deadline, 1000);
        if (left == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left) <= 0)
            continue;
        ssize_t n = recv(fd, (char *)a + got, sizeof *a - got, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return got ? -EPROTO : -EAGAIN;
        if (n > 0)
            got += (size_t)n;
        size_t known = got < sizeof DOOR_MAGIC ? got : sizeof DOOR_MAGIC;
        if (memcmp(a->magic, DOOR_MAGIC, known) != 0)
            return -EPROTO;
    }
    return 0;
}

int door_hear_answer(const struct door_knocked *k, const unsigned char *word, int64_t deadline,
                     size_t size, unsigned char body[DOOR_BODY_BYTES])
{
    unsigned char proof[DOOR_PROOF_BYTES];
    struct answer a;
    int rc = answer_wait(k->fd, deadline, &a);
    if (rc)
        return rc;
    door_prove(word, PROOF_ANSWER, k->nonce, a.body, size, proof);
    if (!gp_bytes_same(proof, a.proof, sizeof proof))
        return -EPROTO;
    memcpy(body, a.body, DOOR_BODY_BYTES);
    return 0;
}

int door_knock_at(int fd, const unsigned char *word, const unsigned char *mark,
                  struct door_knocked *out)
{
    struct knock k = {.magic = DOOR_MAGIC};
    if (getrandom(k.nonce, sizeof k.nonce, 0) != (ssize_t)sizeof k.nonce)
        return -EIO;
    if (mark)
        memcpy(k.nonce, mark, DOOR_MARK_BYTES);
    door_prove(word, PROOF_KNOCK, k.nonce, NULL, 0, k.proof);
    memcpy(out->nonce, k.nonce, sizeof out->nonce);
    out->fd = fd;
    return send(fd, &k, sizeof k, MSG_NOSIGNAL) == (ssize_t)sizeof k ? 0 : -EAGAIN;
}

int door_knock(const char *endpoint, const unsigned char *word, int64_t deadline,
               struct door_knocked *out)
{
    struct sockaddr_storage there = {0};
    socklen_t length = sizeof there;
    int fd = -1;
    int rc = gp_dial(endpoint, gp_reach_ms(deadline), &fd);
    if (rc)
        return rc;
    rc = door_knock_at(fd, word, NULL, out);
    if (rc == 0 && getpeername(fd, (void *)&there, &length) != 0)
        rc = -EAGAIN;
    if (rc)
        close(fd);
    else
        door_host_show(&there, out->host);
    return rc;
}

void door_greeting_nonce(const struct door_knocked *k, const unsigned char *word,
                         unsigned char nonce[DOOR_NONCE_BYTES])
{
    door_nonce_of_greeting(word, k->nonce, nonce);
}

void door_confirm(const struct door_knocked *k, const unsigned char *word,
                  const unsigned char body[DOOR_BODY_BYTES], unsigned char proof[DOOR_PROOF_BYTES])
{
    door_prove(word, PROOF_CONFIRM, k->nonce, body, DOOR_BODY_BYTES, proof);
}

void door_lanes_word(const unsigned char *word, const unsigned char nonce[DOOR_NONCE_BYTES],
                     const unsigned char body[DOOR_BODY_BYTES], unsigned char out[DOOR_WORD_BYTES])
{
    unsigned char proof[DOOR_PROOF_BYTES];
    door_prove(word, PROOF_LANES, nonce, body, DOOR_BODY_BYTES, proof);
    memcpy(out, proof, DOOR_WORD_BYTES);
    explicit_bzero(proof, sizeof proof);
}

void door_key(const unsigned char *word, unsigned char key[DOOR_PROOF_BYTES])
{
    static const unsigned char none[DOOR_NONCE_BYTES];
    door_prove(word, PROOF_KEY, none, NULL, 0, key);
}

int door_word_read(const char *text, unsigned char word[DOOR_WORD_BYTES], struct gp_error *err)
{
    if (gp_hex_read(text, word, DOOR_WORD_BYTES) == 0)
        return 0;
    gp_error_set(err, "the word in the address (door=) must be 32 digits 0-9 a-f");
    return -EINVAL;
}
