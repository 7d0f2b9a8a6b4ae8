#include "ranks.h"

#include <stdio.h>
#include <string.h>

#include "gate.h"
#include "ipc.h"
#include "monotonic.h"
#include "transport/hex.h"
#include "unique_id.h"
#include "wire/sha256.h"

/* So long nothing of a communicator that has lost a rank comes to an end: what the dead one had
 * done before it died may still be on its way, and others may need it no more. */
#define STUCK_NS UINT64_C(5000000000)

void gpw_ranks_key(struct gp_communicator *c, const uint8_t *sealed)
{
    memcpy(c->key, sealed + GPW_ID_BODY, sizeof c->key); /* of its MAC: no two ids have the same */
    c->keyed = true;
}

/* Of what is made of another, of this kind and number. */
static void key_below(struct gp_communicator *c, const struct gp_communicator *parent,
                      const char *kind, uint32_t number, int32_t color)
{
    struct gp_sha256 h;
    unsigned char hash[32];
    gp_sha256_start(&h);
    gp_sha256_add(&h, parent->key, sizeof parent->key);
    gp_sha256_add(&h, kind, strlen(kind));
    gp_sha256_add(&h, &number, sizeof number);
    gp_sha256_add(&h, &color, sizeof color);
    gp_sha256_finish(&h, hash);
    memcpy(c->key, hash, sizeof c->key);
    c->keyed = parent->keyed;
}

void gpw_ranks_key_of_part(struct gp_communicator *c, struct gp_communicator *parent, int32_t color)
{
    key_below(c, parent, "part", parent->parts++, color);
}

void gpw_ranks_key_of_rest(struct gp_communicator *c, const struct gp_communicator *parent,
                           const int32_t *excluded, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) /* each rank may name them in an order of its own */
        sum += ((uint32_t)excluded[i] + 1) * UINT32_C(0x9e3779b9);
    key_below(c, parent, "rest", sum, (int32_t)count);
}

void gpw_ranks_crowd(struct gpw_session *s, struct gp_communicator *c)
{
    struct gp_communicator *other = c->keyed ? s->nccl->communicators : NULL;
    for (; other; other = other->next)
        if (other != c && other->keyed && memcmp(other->key, c->key, sizeof c->key) == 0)
            c->crowded = other->crowded = true;
}

static bool say(struct gpw_session *s, const char *word, const struct gp_communicator *c)
{
    char key[2 * GPW_RANKS_KEY + 1], line[64];
    gp_hex_show(c->key, GPW_RANKS_KEY, key);
    snprintf(line, sizeof line, "%s %s", word, key);
    return gpw_ipc_say(s, line);
}

void gpw_ranks_tell(struct gpw_session *s, struct gp_communicator *c)
{
    uint64_t server = gpw_ipc_servers(s);
    if (c->keyed && c->real && c->told != server && say(s, "rank", c))
        c->told = server;
}

void gpw_ranks_left(struct gpw_session *s, const struct gp_communicator *c)
{
    const struct gp_communicator *other = s->nccl->communicators;
    while (other && (other == c || other->gone || !other->told ||
                     memcmp(other->key, c->key, sizeof c->key) != 0))
        other = other->next;
    if (c->told && !other) /* else a rank of this process is there still */
        say(s, "left", c);
}

void gpw_ranks_heard(struct gpw_session *s, const char *line)
{
    static const char word[] = "lost ";
    uint8_t key[GPW_RANKS_KEY];
    const size_t length = sizeof word - 1;
    if (strncmp(line, word, length) != 0 || strlen(line) != length + 2 * sizeof key ||
        gp_hex_read(line + length, key, sizeof key) != 0)
        return;
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    for (; c; c = c->next)
        if (c->keyed && memcmp(c->key, key, sizeof key) == 0)
            c->lost = true;
}

/* Whether something of it waits, for other ranks as well as may be known. */
static bool waits(struct gpw_session *s, struct gp_communicator *c)
{
    if (gpw_communicator_state(s, c) == ncclInProgress)
        return true;
    return c->captured ? gpw_gate_busy(s) : gpw_communicator_pending(s, c);
}

static void look(struct gpw_session *s, struct gp_communicator *c, uint64_t now)
{
    bool same = waits(s, c) && c->stuck_since && c->batch == c->stuck_batch;
    c->stuck_batch = c->batch;
    if (!same)
        c->stuck_since = now;
    else if (now - c->stuck_since > STUCK_NS && c->failed == ncclSuccess) {
        c->failed = ncclRemoteError;
        c->given_up = true;
    }
}

void gpw_ranks_tick(struct gpw_session *s)
{
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    if (!c)
        return;
    gpw_ipc_listen(s);
    uint64_t now = gp_now_ns();
    for (; c; c = c->next) {
        gpw_ranks_tell(s, c);
        if (c->lost && c->real)
            look(s, c, now);
    }
}
