/* What the loop and the threads of links know of them and of transfers, under the lock. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "monotonic.h"
#include "peer_internal.h"
#include "seat.h"

struct gpw_transfer **gpw_transfer_find(struct gpw_transfer **list, uint64_t tag)
{
    while (*list && (*list)->tag != tag)
        list = &(*list)->next;
    return list;
}

void gpw_transfer_end(struct gpw_transfer *t)
{
    if (t->over || t->busy)
        return;
    t->over = true;
    struct gpw_transfer **at = t->sends ? &t->peer->sends : &t->peer->recvs;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
}

bool gpw_transfer_goes_on(const struct gpw_transfer *t)
{
    return t->flag && (!t->lane->seat || gp_seat_goes_on(t->lane->seat));
}

void gpw_transfer_reach(struct gpw_transfer *t)
{
    struct gpw_peer *p = t->peer;
    if (t->reached || t->over)
        return;
    t->reached = true;
    p->stirred = gp_now_ns();
    if (!t->sends)
        gpw_peer_note(p, GPW_PEER_READY, t->tag, t->bytes, CUDA_SUCCESS);
    else if (!t->ready)
        gpw_peer_note(p, GPW_PEER_OFFER, t->tag, t->bytes, CUDA_SUCCESS);
    if (t->bytes == 0)
        gpw_transfer_end(t);
    pthread_cond_signal(&p->work);
}

static bool marks_look(struct gpw_transfer *list)
{
    bool more = false;
    for (struct gpw_transfer *next; list; list = next) {
        next = list->next;
        if (!list->marked || list->reached)
            continue;
        if (__atomic_load_n(&list->lane->marks[list->word], __ATOMIC_ACQUIRE))
            gpw_transfer_reach(list);
        else
            more = true;
    }
    return more;
}

bool gpw_peer_marks_look(struct gpw_peer *p)
{
    bool sends = marks_look(p->sends), recvs = marks_look(p->recvs);
    return sends || recvs;
}

void gpw_transfer_fail(struct gpw_transfer *t, CUresult result)
{
    if (t->result == CUDA_SUCCESS)
        t->result = result;
    gpw_transfer_end(t);
}

bool gpw_peer_note(struct gpw_peer *p, enum gpw_peer_kind kind, uint64_t tag, uint64_t bytes,
                   CUresult result)
{
    if (p->state == GPW_PEER_DOWN)
        return true;
    struct gpw_peer_note *n = p->note_count < GPW_PEER_EARLY_MAX ? malloc(sizeof *n) : NULL;
    if (!n) {
        gpw_peer_down(p, "there is no memory for a message");
        return false;
    }
    *n = (struct gpw_peer_note){
        .message = {.kind = kind, .tag = tag, .bytes = bytes, .result = (int32_t)result}};
    *p->notes_end = n;
    p->notes_end = &n->next;
    p->note_count++;
    pthread_cond_signal(&p->work);
    return true;
}

static void notes_drop(struct gpw_peer *p)
{
    while (p->notes) {
        struct gpw_peer_note *n = p->notes;
        p->notes = n->next;
        free(n);
    }
    p->notes_end = &p->notes;
    p->note_count = 0;
    while (p->early) {
        struct gpw_peer_early *e = p->early;
        p->early = e->next;
        free(e);
    }
    p->early_count = 0;
}

/* Those that a thread works on end when it lets go. */
static void fail_all(struct gpw_transfer *list)
{
    for (struct gpw_transfer *next; list; list = next) {
        next = list->next;
        gpw_transfer_fail(list, CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
}

void gpw_peer_down(struct gpw_peer *p, const char *format, ...)
{
    if (p->state == GPW_PEER_DOWN)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(p->why.text, sizeof p->why.text, format, args);
    va_end(args);
    bool harm = p->sends || p->recvs;
    if (!p->stop && p->state == GPW_PEER_UP)
        gpw_log(harm ? "warn" : "info", "peer %u: the link is gone: %s", p->index, p->why.text);
    p->state = GPW_PEER_DOWN;
    fail_all(p->sends);
    fail_all(p->recvs);
    notes_drop(p);
    pthread_cond_broadcast(&p->work);
}

void gpw_peers_give_up(struct gpw_peers *all)
{
    for (unsigned i = 0; i < GP_PEERS_MAX; i++)
        if (all->links[i] && all->links[i]->state == GPW_PEER_UP)
            gpw_peer_down(all->links[i], "it has stopped in the middle of a message");
}

bool gpw_peer_stopped(struct gpw_peer *p)
{
    pthread_mutex_lock(&p->all->lock);
    bool stopped = p->stop || p->state == GPW_PEER_DOWN;
    pthread_mutex_unlock(&p->all->lock);
    return stopped;
}

const uint8_t *gpw_peers_key(const struct gpw_session *s)
{
    return s->peers && s->peers->at.has_key ? s->peers->at.key : NULL;
}
