#include "transport/door_entry.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "transport/hex.h"
#include "transport/support.h"
#include "wire/hmac.h"

/* How long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000
/* How long nothing is looked at while nobody says anything. */
#define LOOK_MS 200

int door_entry_open(struct door_entry *e, const char *url, int handed, char *endpoint, size_t size,
                    const unsigned char *word, struct gp_error *err)
{
    *e = (struct door_entry){.fd = -1, .generation = gp_fork_generation()};
    int rc = door_open(handed, endpoint, size, word, &e->door);
    if (rc)
        gp_error_set(err, "cannot listen at %.200s: %s", url, strerror(-rc));
    return rc;
}

void door_entry_show(const struct door_entry *e, const char *endpoint, char *url, size_t size)
{
    char word[2 * DOOR_WORD_BYTES + 1];
    gp_hex_show(door_word(e->door), DOOR_WORD_BYTES, word);
    snprintf(url, size, "%s?door=%s", endpoint, word);
    explicit_bzero(word, sizeof word);
}

/* Forget it; the door closes its connection unless that is released. */
static void guest_end(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l)
{
    steps->forget(l);
    if (e->door)
        door_guest_drop(e->door);
    e->fd = -1;
    e->look_ms = 0;
    e->got = 0;
    explicit_bzero(e->expected, sizeof e->expected);
    explicit_bzero(e->said, sizeof e->said);
}

static void entry_close(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l)
{
    guest_end(e, steps, l);
    door_close(e->door);
    e->door = NULL;
}

int door_entry_listen(const struct door_steps *steps, const char *url, struct gp_listener **out,
                      struct gp_error *err)
{
    struct gp_listener *l = calloc(1, steps->listener_size);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    int rc = steps->open(l, url, err);
    if (rc)
        free(l);
    else
        *out = l;
    return rc;
}

void door_entry_unlisten(const struct door_steps *steps, struct gp_listener *l)
{
    if (!l)
        return;
    entry_close((struct door_entry *)l, steps, l);
    explicit_bzero(l, steps->listener_size); /* it has the word */
    free(l);
}

int door_entry_challenge(struct door_entry *e)
{
    if (getrandom(e->body, sizeof e->body, 0) != (ssize_t)sizeof e->body)
        return -EIO;
    door_guest_expects(e->door, e->body, e->expected);
    return door_answer(e->door, e->body, sizeof e->body);
}

int door_entry_confirmed(struct door_entry *e)
{
    while (e->got < sizeof e->said) {
        ssize_t n = recv(e->fd, e->said + e->got, sizeof e->said - e->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return -EAGAIN;
        if (n <= 0)
            return -EPIPE;
        e->got += (size_t)n;
    }
    return gp_bytes_same(e->said, e->expected, sizeof e->said) ? 0 : -EPROTO;
}

static int guest_step(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l,
                      struct gp_channel **out)
{
    if (e->fd < 0) {
        if (!door_has_guest(e->door))
            return -EAGAIN;
        e->fd = door_guest_lend(e->door);
        int rc = steps->begin(l);
        if (rc)
            return rc == -EAGAIN ? -EPROTO : rc;
    }
    return steps->step(l, out);
}

/* -EAGAIN not yet, or not this one: whoever is no client of ours is shown out. */
static int guest_let_in(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l,
                        struct gp_channel **out)
{
    int rc = guest_step(e, steps, l, out);
    if (rc == 0) {
        door_guest_release(e->door);
        entry_close(e, steps, l); /* nobody else is meant to come */
        return 0;
    }
    if (e->fd >= 0 && (rc != -EAGAIN || door_guest_age(e->door) > GUEST_COMES_NS))
        guest_end(e, steps, l);
    return -EAGAIN;
}

int door_entry_accept(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l,
                      const char *endpoint, int timeout_ms, struct gp_channel **out,
                      struct gp_error *err)
{
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    if (!e->door || e->generation != gp_fork_generation()) {
        gp_error_set(err, "%s takes one client and has had it; listen again for another", endpoint);
        return -ENOTSUP;
    }
    for (;;) {
        struct pollfd items[DOOR_ITEMS];
        int left = gp_deadline_left_ms(deadline, LOOK_MS);
        int wait = e->look_ms && left > e->look_ms ? e->look_ms : left;
        poll(items, (nfds_t)door_items(e->door, items), wait);
        door_serve(e->door);
        if (guest_let_in(e, steps, l, out) == 0)
            return 0;
        if (left == 0) {
            gp_error_set(err, "nobody connected to %s within %d ms", endpoint, timeout_ms);
            return -EAGAIN;
        }
    }
}
