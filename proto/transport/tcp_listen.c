/* Listening and accepting: what a guest at the door (door_entry.h) goes through. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/door_entry.h"
#include "transport/tcp_channel.h"

struct gp_listener {
    struct door_entry entry;
    struct tcp_address address; /* as bound, without wildcards for the port */
    struct gp_silence silence;
    char url[TCP_URL_MAX];
    struct tcp_tls *tls; /* with the guest */
};

/* --- a guest -------------------------------------------------------------- */

static int guest_begin(struct gp_listener *l)
{
    unsigned char key[DOOR_PROOF_BYTES];
    if (!l->address.encrypts)
        return door_entry_challenge(&l->entry);
    door_key(door_word(l->entry.door), key);
    int rc = tcp_tls_new(key, true, &l->tls);
    explicit_bzero(key, sizeof key);
    return rc;
}

static int guest_step(struct gp_listener *l, struct gp_channel **out)
{
    int fd = l->entry.fd;
    int rc = l->address.encrypts ? tcp_tls_pump(l->tls, fd) : door_entry_confirmed(&l->entry);
    if (rc == 0)
        rc = tcp_channel_new(fd, l->tls, &l->silence, true, out);
    if (rc == 0)
        l->tls = NULL; /* the channel's */
    return rc;
}

static void guest_forget(struct gp_listener *l)
{
    tcp_tls_free(l->tls);
    l->tls = NULL;
}

static const struct door_steps steps = {guest_begin, guest_step, guest_forget};

/* --- listening ------------------------------------------------------------ */

static int listener_open(struct gp_listener *l, const char *url, struct gp_error *err)
{
    struct tcp_address *a = &l->address;
    int rc = gp_silence_read(&l->silence, err);
    if (rc == 0)
        rc = tcp_address_parse(url, true, a, err);
    if (rc)
        return rc;
    return door_entry_open(&l->entry, url, a->handed, a->endpoint, sizeof a->endpoint,
                           a->has_word ? a->word : NULL, err);
}

int tcp_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct gp_listener *l = calloc(1, sizeof *l);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    int rc = listener_open(l, url, err);
    if (rc) {
        free(l);
        return rc;
    }
    door_entry_show(&l->entry, l->address.endpoint, l->url, sizeof l->url);
    *out = l;
    return 0;
}

const char *tcp_listener_url(const struct gp_listener *l)
{
    return l->url;
}

void tcp_listener_close(struct gp_listener *l)
{
    if (!l)
        return;
    door_entry_close(&l->entry, &steps, l);
    explicit_bzero(l, sizeof *l); /* it has the word */
    free(l);
}

int tcp_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    return door_entry_accept(&l->entry, &steps, l, l->address.endpoint, timeout_ms, out, err);
}
