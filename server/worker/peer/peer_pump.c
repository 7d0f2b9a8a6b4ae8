/* A link's threads: bytes between the GPU and the wire. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "own_thread.h"
#include "peer_internal.h"

/* Pieces read ahead of the wire, over all transfers of a link. */
#define AHEAD 4u
#define STEP_US 100000

static void down(struct gpw_peer *p, const char *why)
{
    pthread_mutex_lock(&p->all->lock);
    gpw_peer_down(p, "%s", why);
    pthread_mutex_unlock(&p->all->lock);
}

/* The threads' own captures are none; others' must not forbid what they do. */
static void thread_begin(struct gpw_peer *p)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    p->driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUresult context_use(struct gpw_peer *p, CUcontext *current, CUcontext context)
{
    if (*current == context)
        return CUDA_SUCCESS;
    CUresult r = p->driver->cuCtxSetCurrent(context);
    *current = r == CUDA_SUCCESS ? context : NULL;
    return r;
}

/* --- the writer ---------------------------------------------------------------------------- */

/* A piece on its way from the GPU to the wire. */
struct flight {
    struct gpw_transfer *transfer;
    struct gpw_lane *lane;
    struct gpw_lane_slot *slot;
    uint64_t tag, offset;
    uint32_t bytes;
};

struct writer {
    struct gpw_peer *peer;
    CUcontext context;            /* current here */
    struct flight flights[AHEAD]; /* the oldest first, from `first` on */
    unsigned first, count;
};

static bool sendable(const struct gpw_transfer *t)
{
    return t->reached && t->ready && t->result == CUDA_SUCCESS && t->moved < t->bytes;
}

/* The next transfer in turn; it goes behind the others. */
static struct gpw_transfer *turn_next(struct gpw_peer *p)
{
    struct gpw_transfer **at = &p->sends;
    while (*at && !sendable(*at))
        at = &(*at)->next;
    struct gpw_transfer *t = *at;
    if (!t || !t->next)
        return t;
    *at = t->next;
    t->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = t;
    return t;
}

/* Start to read the next piece of whose turn it is. False: nothing to read now. The lock
 * is held, and let go over the call of the driver. */
static bool piece_start(struct writer *w)
{
    struct gpw_peer *p = w->peer;
    if (w->count == AHEAD)
        return false;
    struct gpw_transfer *t = turn_next(p);
    if (!t)
        return false;
    struct gpw_lane *lane = t->lane;
    t->busy++;
    /* with pieces in hand do not wait for others' slots: ours may be what they wait for */
    struct gpw_lane_slot *slot = gpw_lane_slot_take(lane, false, w->count == 0);
    if (!slot || t->result != CUDA_SUCCESS) {
        t->busy--;
        if (slot)
            gpw_lane_slot_give(lane, false, slot);
        if (t->result != CUDA_SUCCESS)
            gpw_transfer_end(t);
        return slot != NULL;
    }
    uint64_t left = t->bytes - t->moved;
    struct flight f = {t,        lane,
                       slot,     t->tag,
                       t->moved, left < GP_CHUNK_MAX ? (uint32_t)left : (uint32_t)GP_CHUNK_MAX};
    t->moved += f.bytes;
    pthread_mutex_unlock(&p->all->lock);
    CUresult r = context_use(p, &w->context, lane->context);
    if (r == CUDA_SUCCESS)
        r = p->driver->cuMemcpyDtoHAsync_v2(slot->memory, t->address + f.offset, f.bytes,
                                            lane->out);
    if (r == CUDA_SUCCESS)
        r = p->driver->cuEventRecord(slot->event, lane->out);
    pthread_mutex_lock(&p->all->lock);
    if (r != CUDA_SUCCESS && t->result == CUDA_SUCCESS) {
        t->result = r;
        gpw_peer_note(p, GPW_PEER_ABORT, t->tag, 0, r);
    }
    w->flights[(w->first + w->count++) % AHEAD] = f;
    return true;
}

static int piece_send(struct gpw_peer *p, const struct flight *f)
{
    static const uint64_t zeros;
    uint64_t fixed[GPW_PEER_FIXED_MAX / 8];
    struct gpw_peer_message m = {
        .kind = GPW_PEER_DATA, .tag = f->tag, .offset = f->offset, .bytes = f->bytes};
    struct iovec iov[3] = {{fixed, gpw_peer_encode(&m, fixed)}, {f->slot->memory, f->bytes}};
    iov[2] = (struct iovec){(void *)(uintptr_t)&zeros, gp_align8(f->bytes) - f->bytes};
    return p->transport->send(p->channel, iov, iov[2].iov_len ? 3 : 2, 0);
}

/* The oldest piece has been read: the stream may go on behind the last one, and the
 * bytes go out. The lock is held, and let go over what takes time. */
static void piece_finish(struct writer *w)
{
    struct gpw_peer *p = w->peer;
    struct flight f = w->flights[w->first];
    w->first = (w->first + 1) % AHEAD;
    w->count--;
    pthread_mutex_unlock(&p->all->lock);
    CUresult r = context_use(p, &w->context, f.lane->context);
    if (r == CUDA_SUCCESS)
        r = p->driver->cuEventSynchronize(f.slot->event);
    pthread_mutex_lock(&p->all->lock);
    struct gpw_transfer *t = f.transfer;
    if (r != CUDA_SUCCESS && t->result == CUDA_SUCCESS) {
        t->result = r;
        gpw_peer_note(p, GPW_PEER_ABORT, t->tag, 0, r);
    }
    bool good = t->result == CUDA_SUCCESS && p->state == GPW_PEER_UP;
    t->busy--;
    if (t->result != CUDA_SUCCESS || t->moved == t->bytes)
        gpw_transfer_end(t);
    if (good) {
        pthread_mutex_unlock(&p->all->lock);
        int rc = piece_send(p, &f);
        pthread_mutex_lock(&p->all->lock);
        if (rc == 0)
            p->all->bytes_sent += f.bytes;
        else
            gpw_peer_down(p, "%s", strerror(-rc));
    }
    gpw_lane_slot_give(f.lane, false, f.slot);
}

static void notes_send(struct gpw_peer *p)
{
    struct gpw_peer_note *n = p->notes;
    p->notes = NULL;
    p->notes_end = &p->notes;
    p->note_count = 0;
    pthread_mutex_unlock(&p->all->lock);
    int rc = 0;
    while (n) {
        struct gpw_peer_note *next = n->next;
        uint64_t fixed[GPW_PEER_FIXED_MAX / 8];
        struct iovec iov = {fixed, gpw_peer_encode(&n->message, fixed)};
        if (rc == 0)
            rc = p->transport->send(p->channel, &iov, 1, next ? GP_SEND_LATER : 0);
        free(n);
        n = next;
    }
    pthread_mutex_lock(&p->all->lock);
    if (rc != 0)
        gpw_peer_down(p, "%s", strerror(-rc));
}

static void *writer_main(void *arg)
{
    struct writer w = {.peer = arg};
    struct gpw_peer *p = w.peer;
    thread_begin(p);
    pthread_mutex_lock(&p->all->lock);
    while (p->state == GPW_PEER_UP && !p->stop) {
        if (p->notes)
            notes_send(p);
        else if (piece_start(&w))
            continue;
        else if (w.count)
            piece_finish(&w);
        else
            pthread_cond_wait(&p->work, &p->all->lock);
    }
    while (w.count)
        piece_finish(&w);
    pthread_mutex_unlock(&p->all->lock);
    return NULL;
}

/* --- the reader ------------------------------------------------------------------------------ */

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

/* To the GPU: into pinned memory, and on from there. */
static CUresult piece_copy(struct gpw_peer *p, CUcontext *current, struct gpw_transfer *t,
                           struct gpw_lane_slot *slot, const struct gpw_peer_message *m)
{
    CUresult r = context_use(p, current, t->lane->context);
    if (r == CUDA_SUCCESS) /* the copy before the last has long passed */
        r = p->driver->cuEventSynchronize(slot->event);
    if (r != CUDA_SUCCESS)
        return r;
    memcpy(slot->memory, m->data, m->bytes);
    r = p->driver->cuMemcpyHtoDAsync_v2(t->address + m->offset, slot->memory, m->bytes,
                                        t->lane->in);
    if (r == CUDA_SUCCESS)
        r = p->driver->cuEventRecord(slot->event, t->lane->in);
    /* asked for when it is over, which may be before the last piece */
    if (r == CUDA_SUCCESS)
        r = p->driver->cuEventRecord(t->event, t->lane->in);
    return r;
}

/* The lock is held, and let go over the copy. */
static int piece_take(struct gpw_peer *p, CUcontext *current, const struct gpw_peer_message *m)
{
    struct gpw_transfer *t = *gpw_transfer_find(&p->recvs, m->tag);
    if (!t)
        return 0; /* given up here; the other side hears of it */
    if (!t->reached || m->offset != t->moved || m->bytes > t->bytes - t->moved)
        return -EPROTO;
    t->busy++;
    struct gpw_lane *lane = t->lane;
    struct gpw_lane_slot *slot = gpw_lane_slot_take(lane, true, true);
    pthread_mutex_unlock(&p->all->lock);
    CUresult r = piece_copy(p, current, t, slot, m);
    pthread_mutex_lock(&p->all->lock);
    gpw_lane_slot_give(lane, true, slot);
    t->busy--;
    t->recorded = true;
    t->moved += m->bytes;
    p->all->bytes_received += m->bytes;
    if (r != CUDA_SUCCESS && t->result == CUDA_SUCCESS) {
        t->result = r;
        gpw_peer_note(p, GPW_PEER_REFUSE, t->tag, 0, r);
    }
    if (t->result != CUDA_SUCCESS || t->moved == t->bytes)
        gpw_transfer_end(t);
    return 0;
}

static int receive(struct gpw_peer *p, CUcontext *current)
{
    const void *bytes;
    size_t size;
    int rc = p->transport->recv(p->channel, STEP_US, &bytes, &size);
    if (rc != 0)
        return rc == -EAGAIN ? 0 : rc;
    struct gpw_peer_message m;
    rc = gpw_peer_decode(bytes, size, &m);
    pthread_mutex_lock(&p->all->lock);
    if (rc == 0 && p->state == GPW_PEER_UP)
        rc = m.kind == GPW_PEER_DATA    ? piece_take(p, current, &m)
             : m.kind >= GPW_PEER_OFFER ? met(p, &m)
                                        : -EPROTO;
    pthread_mutex_unlock(&p->all->lock);
    p->transport->release(p->channel);
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

static void *reader_main(void *arg)
{
    struct gpw_peer *p = arg;
    CUcontext current = NULL;
    if (link_up(p)) {
        thread_begin(p);
        int rc = gp_thread_create(&p->writer, "peer", NULL, writer_main, p);
        bool writer = rc == 0;
        if (!writer)
            down(p, strerror(-rc));
        while (!gpw_peer_stopped(p)) {
            rc = receive(p, &current);
            if (rc != 0)
                down(p, reason(rc));
        }
        down(p, "the session is over");
        if (writer)
            pthread_join(p->writer, NULL);
    }
    if (p->channel)
        p->transport->close(p->channel);
    p->channel = NULL;
    return NULL;
}

int gpw_peer_start(struct gpw_peer *p)
{
    return gp_thread_create(&p->reader, "peer", NULL, reader_main, p);
}
