/* Listening and accepting: what a guest at the door (door_entry.h) goes through. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/door_entry.h"
#include "transport/ucx_greet.h"

/* How often UCX is asked for the guest's first message. */
#define GREETING_STEP_MS 1

struct gp_listener {
    struct door_entry entry;
    struct ucx_address address; /* as bound, without wildcards for the port */
    struct gp_silence silence;
    char url[UCX_URL_MAX];

    /* Of the guest. */
    struct ucx_proof proof;
    struct ucx_hearing *hearing;
    struct gp_channel *channel; /* from its hello on */
};

/* --- a guest -------------------------------------------------------------- */

static int guest_begin(struct gp_listener *l)
{
    l->hearing = calloc(1, sizeof *l->hearing);
    if (!l->hearing)
        return -ENOMEM;
    int rc = door_entry_challenge(&l->entry);
    door_key(door_word(l->entry.door), l->proof.key);
    memcpy(l->proof.confirmed, l->entry.expected, sizeof l->proof.confirmed);
    return rc;
}

/* Its hello has come: answer it, and greet by UCX. */
static int guest_meet(struct gp_listener *l, const struct ucx_hello *hello)
{
    struct gp_error err = {""};
    int rc = ucx_channel_new(l->entry.fd, &l->silence, true, &l->channel, &err);
    if (rc)
        return rc;
    l->entry.look_ms = GREETING_STEP_MS;
    rc = ucx_hello_say(l->channel, UCX_WORKER, &l->proof);
    return rc ? rc : ucx_greet(l->channel, l->hearing, hello);
}

/* What it says at the door: that it knows the word, and where UCX reaches it. */
static int guest_hear(struct gp_listener *l)
{
    struct ucx_hello hello;
    int rc = door_entry_confirmed(&l->entry);
    if (rc == 0)
        rc = ucx_hello_hear(l->hearing, l->entry.fd, UCX_CLIENT, &l->proof, &hello);
    return rc ? rc : guest_meet(l, &hello);
}

static int guest_step(struct gp_listener *l, struct gp_channel **out)
{
    int rc = l->channel ? 0 : guest_hear(l);
    if (rc == 0)
        rc = ucx_greeted(l->channel);
    if (rc == 0)
        rc = ucx_channel_start(l->channel);
    if (rc == 0) {
        *out = l->channel;
        l->channel = NULL;
    }
    return rc;
}

static void guest_forget(struct gp_listener *l)
{
    if (l->channel && l->entry.generation == gp_fork_generation())
        ucx_channel_drop(l->channel);
    l->channel = NULL;
    free(l->hearing);
    l->hearing = NULL;
    explicit_bzero(&l->proof, sizeof l->proof);
}

/* --- listening ------------------------------------------------------------ */

static int listener_open(struct gp_listener *l, const char *url, struct gp_error *err)
{
    const struct ucx_api *api;
    struct ucx_address *a = &l->address;
    int rc = gp_silence_read(&l->silence, err);
    if (rc == 0)
        rc = ucx_address_parse(url, true, a, err);
    if (rc == 0)
        rc = ucx_library_open(&api, err);
    if (rc)
        return rc;
    rc = door_entry_open(&l->entry, url, a->handed, a->endpoint, sizeof a->endpoint,
                         a->has_word ? a->word : NULL, err);
    if (rc == 0)
        door_entry_show(&l->entry, a->endpoint, l->url, sizeof l->url);
    return rc;
}

static const struct door_steps steps = {
    .listener_size = sizeof(struct gp_listener),
    .open = listener_open,
    .begin = guest_begin,
    .step = guest_step,
    .forget = guest_forget,
};

int ucx_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    return door_entry_listen(&steps, url, out, err);
}

const char *ucx_listener_url(const struct gp_listener *l)
{
    return l->url;
}

void ucx_listener_close(struct gp_listener *l)
{
    door_entry_unlisten(&steps, l);
}

int ucx_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    return door_entry_accept(&l->entry, &steps, l, l->address.endpoint, timeout_ms, out, err);
}
