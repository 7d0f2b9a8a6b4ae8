/*
 * A link's writer: bytes from the GPU to the wire. Pieces are read ahead into pinned memory, and lent
 * to the transport from there: it sends one while the next ones are read.
 */
#include <string.h>

#include "monotonic.h"
#include "peer_internal.h"
#include "transport/support.h"

/* Pieces read ahead of the wire, over all transfers of a link. */
#define AHEAD 4u
/* And lent to the transport at once. */
#define LENT_MOST GPW_LANE_SLOTS
/* How often to look whether they have left, where there is nothing else to do. */
#define LENT_LOOK_NS 50000
/* How often to look at streams' marks. */
#define MARKS_SPIN_NS ((uint64_t)gp_spin_limit_ns())
#define MARKS_LEAST_NS 20000u
#define MARKS_MOST_NS 200000u
#define MARKS_RELAX 32u

/* A piece on its way from the GPU to the wire. */
struct flight {
    struct gpw_transfer *transfer;
    struct gpw_lane *lane;
    struct gpw_lane_slot *slot;
    uint64_t tag, offset;
    uint32_t bytes;
};

/* And one that the transport may still read. */
struct lent {
    struct gpw_lane *lane;
    struct gpw_lane_slot *slot;
    uint64_t number; /* of the transport's */
};

struct writer {
    struct gpw_peer *peer;
    CUcontext context;            /* current here */
    struct flight flights[AHEAD]; /* the oldest first, from `first` on */
    unsigned first, count;
    struct lent lent[LENT_MOST]; /* likewise */
    unsigned lent_first, lent_count;
};

/* --- from the GPU ---------------------------------------------------------------------------- */

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
    bool wait = w->count == 0 && w->lent_count == 0;
    struct gpw_lane_slot *slot = gpw_lane_slot_take(lane, false, wait);
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
    CUresult r = gpw_peer_context_use(p, &w->context, lane->context);
    if (r == CUDA_SUCCESS)
        r = p->driver->cuMemcpyDtoHAsync_v2(slot->memory, t->address + f.offset, f.bytes,
                                            lane->out);
    if (r == CUDA_SUCCESS && f.offset + f.bytes == t->bytes && gpw_transfer_goes_on(t))
        p->driver->cuStreamWriteValue32_v2(
            lane->out, gpw_lane_word_at(lane, (unsigned)t->word), 1,
            CU_STREAM_WRITE_VALUE_DEFAULT); /* else the loop does it */
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

/* --- to the wire ------------------------------------------------------------------------------ */

/* The first lent ones that have left are free. The lock is held. */
static void lent_give(struct writer *w, uint64_t returned)
{
    while (w->lent_count && w->lent[w->lent_first].number <= returned) {
        struct lent *l = &w->lent[w->lent_first];
        gpw_lane_slot_give(l->lane, false, l->slot);
        w->lent_first = (w->lent_first + 1) % LENT_MOST;
        w->lent_count--;
    }
}

/* Likewise, asking for them; all of them, if `wait`. The lock is let go meanwhile. */
static void lent_look(struct writer *w, bool wait)
{
    struct gpw_peer *p = w->peer;
    if (!w->lent_count)
        return;
    pthread_mutex_unlock(&p->all->lock);
    if (wait) /* an error is the next send's */
        p->transport->take_back(p->channel);
    uint64_t returned = wait ? UINT64_MAX : p->transport->returned(p->channel);
    pthread_mutex_lock(&p->all->lock);
    lent_give(w, returned);
}

static int piece_send(struct gpw_peer *p, const struct flight *f)
{
    static const uint64_t zeros;
    uint64_t fixed[GPW_PEER_FIXED_MAX / 8];
    struct gpw_peer_message m = {
        .kind = GPW_PEER_DATA, .tag = f->tag, .offset = f->offset, .bytes = f->bytes};
    struct iovec iov[3] = {{fixed, gpw_peer_encode(&m, fixed)}, {f->slot->memory, f->bytes}};
    iov[2] = (struct iovec){(void *)(uintptr_t)&zeros, gp_align8(f->bytes) - f->bytes};
    return p->transport->send(p->channel, iov, iov[2].iov_len ? 3 : 2,
                              p->transport->lent ? GP_SEND_LENT : 0);
}

/* What was sent is the transport's until it says otherwise. The lock is held. */
static void piece_lend(struct writer *w, const struct flight *f, uint64_t number)
{
    w->lent[(w->lent_first + w->lent_count++) % LENT_MOST] = (struct lent){f->lane, f->slot,
                                                                           number};
}

/* The lock is held, and let go while it is sent. */
static void piece_leave(struct writer *w, const struct flight *f)
{
    struct gpw_peer *p = w->peer;
    uint64_t number = 0, returned = 0;
    if (w->lent_count == LENT_MOST)
        lent_look(w, true);
    pthread_mutex_unlock(&p->all->lock);
    int rc = piece_send(p, f);
    if (rc == 0 && p->transport->lent) {
        number = p->transport->lent(p->channel);
        returned = p->transport->returned(p->channel);
    }
    pthread_mutex_lock(&p->all->lock);
    if (rc == 0)
        p->all->bytes_sent += f->bytes;
    else
        gpw_peer_down(p, "%s", strerror(-rc));
    if (number > returned)
        piece_lend(w, f, number);
    else
        gpw_lane_slot_give(f->lane, false, f->slot);
    lent_give(w, returned);
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
    CUresult r = gpw_peer_context_use(p, &w->context, f.lane->context);
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
    if (good)
        piece_leave(w, &f);
    else
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

/* How long to sleep where a stream is about to come to a transfer: a hundredth of the time since the
 * last one did, so that it is late by as much at most; nothing in the first moments. */
static uint64_t marks_patience(const struct gpw_peer *p)
{
    uint64_t waited = gp_now_ns() - p->stirred;
    if (waited < MARKS_SPIN_NS)
        return 0;
    uint64_t ns = waited / 100;
    return ns < MARKS_LEAST_NS ? MARKS_LEAST_NS : ns < MARKS_MOST_NS ? ns : MARKS_MOST_NS;
}

static void wait_for(struct gpw_peer *p, uint64_t ns)
{
    uint64_t until = gp_now_ns() + ns;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_cond_timedwait(&p->work, &p->all->lock, &t);
}

/* Until there is something to do, or what is looked at may be there. The lock is held. */
static void writer_wait(struct writer *w, bool marks)
{
    struct gpw_peer *p = w->peer;
    uint64_t ns = marks ? marks_patience(p) : UINT64_MAX;
    if (w->lent_count && ns > LENT_LOOK_NS)
        ns = LENT_LOOK_NS;
    if (ns == UINT64_MAX) {
        pthread_cond_wait(&p->work, &p->all->lock);
    } else if (ns) {
        wait_for(p, ns);
    } else {
        pthread_mutex_unlock(&p->all->lock);
        for (unsigned i = 0; i < MARKS_RELAX; i++)
            gp_cpu_relax();
        pthread_mutex_lock(&p->all->lock);
    }
}

void *gpw_peer_writer(void *arg)
{
    struct writer w = {.peer = arg};
    struct gpw_peer *p = w.peer;
    gpw_peer_thread_begin(p);
    pthread_mutex_lock(&p->all->lock);
    while (p->state == GPW_PEER_UP && !p->stop) {
        lent_look(&w, false);
        bool marks = gpw_peer_marks_look(p);
        if (p->notes)
            notes_send(p);
        else if (piece_start(&w))
            continue;
        else if (w.count)
            piece_finish(&w);
        else
            writer_wait(&w, marks);
    }
    while (w.count)
        piece_finish(&w);
    lent_look(&w, true);
    pthread_mutex_unlock(&p->all->lock);
    return NULL;
}
