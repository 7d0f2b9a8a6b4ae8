/*
 * A link's reader: bytes from the wire to the GPU. Long pieces are written by the transport to the
 * pinned memory from which the GPU reads them (transport.h, land); others are copied there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "own_thread.h"
#include "peer_internal.h"

#define STEP_US 100000
/* Of a lane's slots some are never promised to messages that may take their time: what arrives
 * meanwhile for another transfer needs one. */
#define SLOTS_KEPT 2u
/* Slots that the GPU may still read. */
#define COOLING 8u

static void down(struct gpw_peer *p, const char *why)
{
    pthread_mutex_lock(&p->all->lock);
    gpw_peer_down(p, "%s", why);
    pthread_mutex_unlock(&p->all->lock);
}

/* The threads' own captures are none; others' must not forbid what they do. */
void gpw_peer_thread_begin(struct gpw_peer *p)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    p->driver->cuThreadExchangeStreamCaptureMode(&mode);
}

CUresult gpw_peer_context_use(struct gpw_peer *p, CUcontext *current, CUcontext context)
{
    if (*current == context)
        return CUDA_SUCCESS;
    CUresult r = p->driver->cuCtxSetCurrent(context);
    *current = r == CUDA_SUCCESS ? context : NULL;
    return r;
}

struct reader {
    struct gpw_peer *peer;
    CUcontext context; /* current here */
    struct cooling {
        struct gpw_lane *lane;
        struct gpw_lane_slot *slot;
    } cooling[COOLING]; /* the oldest first, from `first` on */
    unsigned first, count;
};

/* --- what comes without data ------------------------------------------------------------------- */

static struct gpw_peer_early *early_find(struct gpw_peer *p, bool of_send, uint64_t tag)
{
    struct gpw_peer_early *e = p->early;
    while (e && (e->tag != tag || e->of_send != of_send))
        e = e->next;
    return e;
}

static int early_keep(struct gpw_peer *p, bool of_send, const struct gpw_peer_message *m)
{
    struct gpw_peer_early *e = early_find(p, of_send, m->tag);
    if (!e) {
        e = p->early_count < GPW_PEER_EARLY_MAX ? calloc(1, sizeof *e) : NULL;
        if (!e)
            return -ENOMEM;
        e->next = p->early;
        p->early = e;
        p->early_count++;
    }
    e->of_send = of_send;
    e->tag = m->tag;
    e->bytes = m->bytes;
    e->result = (CUresult)m->result;
    return 0;
}

/* An error of another GPU's, as it is seen from here. */
static CUresult foreign(int32_t result)
{
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_INVALID_VALUE
                                              : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* The other side's stream has come to a transfer, or it has failed there. The lock is held. */
static int met(struct gpw_peer *p, const struct gpw_peer_message *m)
{
    bool of_send = m->kind == GPW_PEER_READY || m->kind == GPW_PEER_REFUSE;
    struct gpw_transfer *t = *gpw_transfer_find(of_send ? &p->sends : &p->recvs, m->tag);
    if (!t)
        return early_keep(p, of_send, m);
    gpw_transfer_meet(t, m->bytes, (CUresult)m->result);
    return 0;
}

void gpw_transfer_meet(struct gpw_transfer *t, uint64_t bytes, CUresult result)
{
    struct gpw_peer *p = t->peer;
    if (result != CUDA_SUCCESS) {
        gpw_transfer_fail(t, foreign((int32_t)result));
    } else if (bytes != t->bytes) {
        gpw_log("warn", "peer %u: tag %llu: %s %llu bytes here, %llu there", p->index,
                (unsigned long long)t->tag, t->sends ? "send of" : "receive of",
                (unsigned long long)t->bytes, (unsigned long long)bytes);
        gpw_transfer_fail(t, CUDA_ERROR_INVALID_VALUE);
        if (t->sends || bytes) /* a signal's sender has finished */
            gpw_peer_note(p, t->sends ? GPW_PEER_ABORT : GPW_PEER_REFUSE, t->tag, 0,
                          CUDA_ERROR_INVALID_VALUE);
    } else if (t->sends) {
        t->ready = true;
        pthread_cond_signal(&p->work);
    } else if (bytes == 0) {
        if (gpw_transfer_goes_on(t))
            __atomic_store_n(t->flag, 1, __ATOMIC_SEQ_CST);
        gpw_transfer_end(t);
    }
}

bool gpw_peer_early_take(struct gpw_peer *p, bool of_send, uint64_t tag, uint64_t *bytes,
                         CUresult *result)
{
    struct gpw_peer_early *e = early_find(p, of_send, tag);
    if (!e)
        return false;
    struct gpw_peer_early **at = &p->early;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    p->early_count--;
    *bytes = e->bytes;
    *result = e->result;
    free(e);
    return true;
}

/* --- slots ------------------------------------------------------------------------------------ */

/* The oldest is free again: waits until the GPU has read it. The lock is held, and let go. */
static void cool_one(struct reader *r)
{
    struct gpw_peer *p = r->peer;
    struct cooling c = r->cooling[r->first];
    r->first = (r->first + 1) % COOLING;
    r->count--;
    pthread_mutex_unlock(&p->all->lock);
    if (gpw_peer_context_use(p, &r->context, c.lane->context) == CUDA_SUCCESS)
        p->driver->cuEventSynchronize(c.slot->event);
    pthread_mutex_lock(&p->all->lock);
    gpw_lane_slot_give(c.lane, true, c.slot);
}

/* Those that it has read already. The lock is not held. */
static void cool_read(struct reader *r)
{
    struct gpw_peer *p = r->peer;
    while (r->count &&
           p->driver->cuEventQuery(r->cooling[r->first].slot->event) != CUDA_ERROR_NOT_READY) {
        pthread_mutex_lock(&p->all->lock);
        cool_one(r);
        pthread_mutex_unlock(&p->all->lock);
    }
}

/* The GPU reads it from now on. The lock is held. */
static void cool_add(struct reader *r, struct gpw_lane *lane, struct gpw_lane_slot *slot)
{
    if (r->count == COOLING)
        cool_one(r);
    r->cooling[(r->first + r->count++) % COOLING] = (struct cooling){lane, slot};
}

/* A free one. Who waits for it has none that others could wait for, and of those that are
 * promised there are never as many as all. The lock is held, and let go. */
static struct gpw_lane_slot *slot_wait(struct reader *r, struct gpw_lane *lane)
{
    struct gpw_lane_slot *slot;
    while (!(slot = gpw_lane_slot_take(lane, true, r->count == 0)))
        cool_one(r);
    return slot;
}

/* Where the transport is to write a piece that is coming: to a slot, if it is one of a transfer
 * that is under way. On a thread of the transport's. */
static bool piece_lands(void *owner, const void *head, size_t size, struct gp_landing *out)
{
    struct gpw_peer *p = owner;
    struct gpw_peer_message m;
    if (gpw_peer_decode(head, size, &m) != 0 || m.kind != GPW_PEER_DATA)
        return false;
    pthread_mutex_lock(&p->all->lock);
    struct gpw_transfer *t = *gpw_transfer_find(&p->recvs, m.tag);
    struct gpw_lane_slot *slot = NULL;
    if (p->state == GPW_PEER_UP && t && t->reached && m.bytes <= t->bytes &&
        p->promised_count < GPW_PEER_PROMISED && t->lane->promised < GPW_LANE_SLOTS - SLOTS_KEPT)
        slot = gpw_lane_slot_take(t->lane, true, false);
    if (slot) {
        unsigned at = (p->promised_first + p->promised_count++) % GPW_PEER_PROMISED;
        p->promised[at] = (struct gpw_peer_promised){t->lane, slot};
        t->lane->promised++;
        *out = (struct gp_landing){
            slot->memory, (size_t)((const char *)m.data - (const char *)head), (size_t)m.bytes};
    }
    pthread_mutex_unlock(&p->all->lock);
    return slot != NULL;
}

/* The oldest one that was promised: pieces are asked for in their order. The lock is held. */
static bool promised_take(struct gpw_peer *p, struct gpw_peer_promised *out)
{
    if (!p->promised_count)
        return false;
    *out = p->promised[p->promised_first];
    out->lane->promised--;
    p->promised_first = (p->promised_first + 1) % GPW_PEER_PROMISED;
    p->promised_count--;
    return true;
}

/* Nothing is written to them any more. */
static void promised_drop(struct gpw_peer *p)
{
    struct gpw_peer_promised gone;
    pthread_mutex_lock(&p->all->lock);
    while (promised_take(p, &gone))
        gpw_lane_slot_give(gone.lane, true, gone.slot);
    pthread_mutex_unlock(&p->all->lock);
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* From pinned memory to the GPU. */
static CUresult piece_copy(struct reader *r, struct gpw_transfer *t, struct gpw_lane_slot *slot,
                           const struct gpw_peer_message *m, bool landed)
{
    struct gpw_driver *d = r->peer->driver;
    CUresult result = gpw_peer_context_use(r->peer, &r->context, t->lane->context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!landed)
        memcpy(slot->memory, m->data, m->bytes);
    result = d->cuMemcpyHtoDAsync_v2(t->address + m->offset, slot->memory, m->bytes, t->lane->in);
    if (result == CUDA_SUCCESS && m->offset + m->bytes == t->bytes && gpw_transfer_goes_on(t))
        d->cuStreamWriteValue32_v2(t->lane->in, gpw_lane_word_at(t->lane, (unsigned)t->word), 1,
                                   CU_STREAM_WRITE_VALUE_DEFAULT); /* else the loop does it */
    if (result == CUDA_SUCCESS)
        result = d->cuEventRecord(slot->event, t->lane->in);
    /* asked for when it is over, which may be before the last piece */
    if (result == CUDA_SUCCESS)
        result = d->cuEventRecord(t->event, t->lane->in);
    return result;
}

/* In a slot, or to be copied to one (`from` NULL). The lock is held, and let go over the copy. */
static int piece_take(struct reader *r, const struct gpw_peer_message *m,
                      struct gpw_lane_slot *from)
{
    struct gpw_peer *p = r->peer;
    struct gpw_transfer *t = *gpw_transfer_find(&p->recvs, m->tag);
    struct gpw_lane *lane = t->lane;
    t->busy++;
    struct gpw_lane_slot *slot = from ? from : slot_wait(r, lane);
    pthread_mutex_unlock(&p->all->lock);
    CUresult result = piece_copy(r, t, slot, m, from != NULL);
    pthread_mutex_lock(&p->all->lock);
    cool_add(r, lane, slot);
    t->busy--;
    t->recorded = true;
    t->moved += m->bytes;
    p->all->bytes_received += m->bytes;
    if (result != CUDA_SUCCESS && t->result == CUDA_SUCCESS) {
        t->result = result;
        gpw_peer_note(p, GPW_PEER_REFUSE, t->tag, 0, result);
    }
    if (t->result != CUDA_SUCCESS || t->moved == t->bytes)
        gpw_transfer_end(t);
    return 0;
}

/* Whether a piece is the next one of a transfer: 0, -EPROTO; -ESRCH: of one that was given up here,
 * of which the other side hears. The lock is held. */
static int piece_check(struct gpw_peer *p, const struct gpw_peer_message *m)
{
    const struct gpw_transfer *t = *gpw_transfer_find(&p->recvs, m->tag);
    if (!t)
        return -ESRCH;
    return t->reached && m->offset == t->moved && m->bytes <= t->bytes - t->moved ? 0 : -EPROTO;
}

/* The lock is held, and let go. */
static int piece_come(struct reader *r, const struct gpw_peer_message *m, bool landed)
{
    struct gpw_peer *p = r->peer;
    struct gpw_peer_promised to = {NULL, NULL};
    if (landed && !promised_take(p, &to))
        return -EPROTO;
    int rc = p->state == GPW_PEER_UP ? piece_check(p, m) : -ESRCH;
    if (rc == 0)
        return piece_take(r, m, to.slot);
    if (to.slot)
        gpw_lane_slot_give(to.lane, true, to.slot);
    return rc == -ESRCH ? 0 : rc;
}

/* With slots that the GPU may still read it comes back soon, to give them back. */
static int receive(struct reader *r)
{
    struct gpw_peer *p = r->peer;
    const void *bytes;
    size_t size;
    int rc = p->transport->recv(p->channel, r->count ? 0 : STEP_US, &bytes, &size);
    if (rc == -EAGAIN && r->count) {
        pthread_mutex_lock(&p->all->lock);
        cool_one(r);
        pthread_mutex_unlock(&p->all->lock);
    }
    if (rc != 0)
        return rc == -EAGAIN ? 0 : rc;
    struct gpw_peer_message m;
    bool landed = p->transport->landed && p->transport->landed(p->channel);
    rc = gpw_peer_decode(bytes, size, &m);
    pthread_mutex_lock(&p->all->lock);
    if (rc == 0 && m.kind == GPW_PEER_DATA)
        rc = piece_come(r, &m, landed);
    else if (rc == 0 && p->state == GPW_PEER_UP)
        rc = m.kind >= GPW_PEER_OFFER ? met(p, &m) : -EPROTO;
    pthread_mutex_unlock(&p->all->lock);
    p->transport->release(p->channel);
    cool_read(r);
    return rc;
}

static const char *reason(int rc)
{
    switch (rc) {
    case -EPIPE:
        return "the other worker has ended, or cannot be reached";
    case -EPROTO:
        return "the other worker sent what no worker of this version sends";
    default:
        return strerror(-rc);
    }
}

static bool link_up(struct gpw_peer *p)
{
    struct gp_error err = {""};
    if (gpw_peer_link(p, &err) != 0) {
        pthread_mutex_lock(&p->all->lock);
        if (!p->stop)
            gpw_log("warn", "peer %u: there is no link: %s", p->index, err.text);
        gpw_peer_down(p, "%s", err.text);
        pthread_mutex_unlock(&p->all->lock);
        return false;
    }
    pthread_mutex_lock(&p->all->lock);
    bool up = p->state == GPW_PEER_OPENING;
    if (up)
        p->state = GPW_PEER_UP;
    pthread_mutex_unlock(&p->all->lock);
    return up;
}

/* What is on its way to a slot is let arrive where the session ends: other sides may need what was
 * sent to them. Else nobody is waited for that may have stopped in the middle of it. */
static void transport_stop(struct gpw_peer *p)
{
    pthread_mutex_lock(&p->all->lock);
    bool stop = p->stop;
    pthread_mutex_unlock(&p->all->lock);
    if (!stop && p->transport->ground)
        p->transport->ground(p->channel);
}

static void read_on(struct gpw_peer *p)
{
    struct reader r = {.peer = p};
    while (!gpw_peer_stopped(p)) {
        int rc = receive(&r);
        if (rc != 0)
            down(p, reason(rc));
    }
    down(p, "the session is over");
    pthread_mutex_lock(&p->all->lock);
    while (r.count)
        cool_one(&r);
    pthread_mutex_unlock(&p->all->lock);
}

static void *reader_main(void *arg)
{
    struct gpw_peer *p = arg;
    if (link_up(p)) {
        gpw_peer_thread_begin(p);
        if (p->transport->land)
            p->transport->land(p->channel, piece_lands, p);
        int rc = gp_thread_create(&p->writer, "peer", NULL, gpw_peer_writer, p);
        if (rc != 0)
            down(p, strerror(-rc));
        read_on(p);
        transport_stop(p);
        if (rc == 0)
            pthread_join(p->writer, NULL);
    }
    if (p->channel)
        p->transport->close(p->channel);
    p->channel = NULL;
    promised_drop(p);
    return NULL;
}

int gpw_peer_start(struct gpw_peer *p)
{
    return gp_thread_create(&p->reader, "peer", NULL, reader_main, p);
}
