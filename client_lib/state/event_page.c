#include "event_page.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "captures.h"
#include "gpc_wire.h"
#include "handle.h"
#include "managed.h"
#include "memory.h"
#include "monotonic.h"
#include "operations_there.h"
#include "session.h"
#include "observe.h"
#include "snapshot.h"
#include "spin.h"
#include "stats.h"
#include "timeline.h"

/* Events with a higher index are asked for. */
#define PLACES (GP_EVENT_PAGE_BYTES / sizeof(uint64_t))
/* While an event is not over the worker is asked so often, who knows of errors. */
#define ASK_NS 10000000u

/* All of it is read and written without a lock: an event that one thread records while another
 * asks for it is either what it was or what it becomes. */
struct polled {
    uint64_t number; /* of the last record; 0: it has none */
    uint64_t given;  /* the last number, perhaps of a record before or another event's */
    uint64_t over;   /* the last that was seen to be over */
    CUcontext
        idle; /* whose stream had nothing to do at the last record that was sent; NULL: none */
    bool timed;
    bool guessed;    /* it was not asked for before its first number */
    uint64_t untold; /* up to this one the worker has to be asked */
    uint64_t asked;  /* ns: when the worker was asked last, or the event recorded */
};

struct gpc_event_page {
    bool told;  /* by notices: there is no page */
    bool waits; /* the page ends waits, too: the worker says there what kernels print */
    struct gp_share share;
    CUcontext context; /* of the records; NULL: none yet */
    uint64_t last;     /* number that was given */
    struct fresh {
        unsigned recorded, asked; /* of these */
    } fresh[2];                   /* events at their first record, without timing and with */
    struct polled of[PLACES];     /* by the events' indices */
};

/* The shadow of an event that may be polled and has not been asked for: without timing, and with. */
static char may_be_polled[2];

void gpc_event_may_be_polled(CUevent event, bool timed)
{
    gpc_handle_attach((uint64_t)event, &may_be_polled[timed]);
}

static bool is_fresh(CUevent event, bool *timed)
{
    const void *shadow = gpc_handle_shadow(GP_HANDLE_EVENT, (uint64_t)event);
    *timed = shadow == &may_be_polled[true];
    return *timed || shadow == &may_be_polled[false];
}

static struct gpc_event_page *page_of(const struct gpc_session *s)
{
    return s ? __atomic_load_n(&s->event_page, __ATOMIC_ACQUIRE) : NULL;
}

/* NULL: it is not polled. */
static struct polled *polled_of(CUevent event, struct gpc_event_page **page)
{
    struct polled *p = gpc_handle_shadow(GP_HANDLE_EVENT, (uint64_t)event);
    *page = p ? page_of(gpc_session_of_handle((uint64_t)event)) : NULL;
    uint32_t index = gp_handle_index((uint64_t)event);
    return *page && index < PLACES && p == &(*page)->of[index] ? p : NULL;
}

void gpc_event_not_polled(CUevent event)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    bool timed;
    if (p || is_fresh(event, &timed))
        gpc_handle_attach((uint64_t)event, NULL);
}

/* Without a page: the worker is to say what is over. */
static struct gpc_event_page *page_told(struct gpc_session *s)
{
    struct gpc_event_page *page = gpc_session_has(s, GP_OP_gp_event_record_told)
                                      ? calloc(1, sizeof *page)
                                      : NULL;
    if (page)
        page->told = true;
    return page;
}

static struct gpc_event_page *page_new(struct gpc_session *s)
{
    if (!gpc_session_shares(s))
        return page_told(s);
    if (!gpc_session_has(s, GP_OP_gp_event_page_open))
        return NULL;
    const struct gpc_route on = gpc_route_to(s);
    struct gpc_event_page *page = calloc(1, sizeof *page);
    bool waits = gpc_session_has(s, GP_OP_gp_event_record_idle);
    size_t bytes = waits ? GP_EVENT_PAGE_ALL : GP_EVENT_PAGE_BYTES;
    if (!page || s->transport->share(s->channel, NULL, bytes, &page->share) != 0) {
        free(page);
        return NULL;
    }
    if (gpc_wire_gp_event_page_open_on(&on, page->share.id, page->share.size) != CUDA_SUCCESS) {
        if (gpc_session_works(s))
            s->transport->unshare(s->channel, &page->share);
        free(page);
        return NULL;
    }
    page->waits = waits;
    /* whatever writes there by mistake is to be found by that */
    mprotect(page->share.addr, page->share.size, PROT_READ);
    return page;
}

/* Asked for once; other threads' events are asked for meanwhile. */
static struct gpc_event_page *page_open(struct gpc_session *s)
{
    struct gpc_event_page *page = page_of(s);
    if (page || __atomic_exchange_n(&s->event_page_wanted, true, __ATOMIC_RELAXED))
        return page;
    page = page_new(s);
    /* pairs with the acquire in page_of */
    __atomic_store_n(&s->event_page, page, __ATOMIC_RELEASE);
    return page;
}

static bool is_of_page(struct gpc_event_page *page, CUcontext context)
{
    CUcontext none = NULL;
    return __atomic_compare_exchange_n(&page->context, &none, context, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED) ||
           none == context;
}

static uint64_t word(const struct gpc_event_page *page, size_t place)
{
    /* pairs with the GPU's write, which comes behind the work's, and with the worker's */
    return __atomic_load_n((const uint64_t *)page->share.addr + place, __ATOMIC_ACQUIRE);
}

static bool is_written(const struct gpc_event_page *page)
{
    return page->told || word(page, GP_EVENT_PAGE_CLOSED) == 0;
}

/* --- programs that make an event for each thing that they ask for --------------------------- */

/* So many events tell what a program does with the next; half of what they told is forgotten then. */
#define FRESH_MOST 64
#define FRESH_LEAST 2

static void fresh_count(struct fresh *fresh, unsigned *what)
{
    if (__atomic_add_fetch(what, 1, __ATOMIC_RELAXED) < FRESH_MOST)
        return;
    unsigned asked = __atomic_load_n(&fresh->asked, __ATOMIC_RELAXED);
    unsigned recorded = __atomic_load_n(&fresh->recorded, __ATOMIC_RELAXED);
    __atomic_store_n(&fresh->asked, asked / 2, __ATOMIC_RELAXED);
    __atomic_store_n(&fresh->recorded, recorded / 2, __ATOMIC_RELAXED);
}

/* An event is recorded that nobody has asked for: whether it is likely that somebody will. */
static bool fresh_guess(struct fresh *fresh)
{
    unsigned asked = __atomic_load_n(&fresh->asked, __ATOMIC_RELAXED);
    unsigned recorded = __atomic_load_n(&fresh->recorded, __ATOMIC_RELAXED);
    fresh_count(fresh, &fresh->recorded);
    return asked >= FRESH_LEAST && 2 * asked >= recorded;
}

/* The event's place in the page; NULL: it has none, or must be asked for. */
static struct polled *polled_make(CUevent event, struct gpc_event_page *page, bool timed,
                                  bool guessed)
{
    uint32_t index = gp_handle_index((uint64_t)event);
    if (index >= PLACES)
        return NULL;
    struct polled *p = &page->of[index];
    __atomic_store_n(&p->number, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&p->timed, timed, __ATOMIC_RELAXED);
    __atomic_store_n(&p->guessed, guessed, __ATOMIC_RELAXED);
    __atomic_store_n(&p->idle, NULL, __ATOMIC_RELAXED);
    gpc_handle_attach((uint64_t)event, p);
    return p;
}

static struct polled *fresh_polled(CUevent event, struct gpc_event_page **page)
{
    bool timed;
    if (!is_fresh(event, &timed))
        return NULL;
    *page = page_of(gpc_session_of_handle((uint64_t)event));
    bool guess = *page && (*page)->told && fresh_guess(&(*page)->fresh[timed]);
    return guess ? polled_make(event, *page, timed, true) : NULL;
}

uint64_t gpc_event_number(CUevent event)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    return p ? __atomic_load_n(&p->number, __ATOMIC_RELAXED) : 0;
}

/* A later record may be over before an earlier one of another stream. Pairs with is_over: who learns
 * it from another thread finds what that has received before. */
static void number_note(uint64_t *last, uint64_t number)
{
    uint64_t known = __atomic_load_n(last, __ATOMIC_RELAXED);
    while (known < number && !__atomic_compare_exchange_n(last, &known, number, true,
                                                          __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

void gpc_on_gp_event_over(struct gpc_session *s, const struct gp_req_gp_event_over *q)
{
    struct gpc_event_page *page = page_of(s);
    if (page && page->told && q->place < PLACES)
        number_note(q->over ? &page->of[q->place].over : &page->of[q->place].untold, q->number);
}

static bool is_over(struct gpc_event_page *page, struct polled *p, uint64_t number)
{
    if (__atomic_load_n(&p->over, __ATOMIC_ACQUIRE) >= number)
        return true;
    if (page->told || word(page, (size_t)(p - page->of)) < number)
        return false;
    number_note(&p->over, number);
    return true;
}

/* Whether the record may bring a number. While one is still to be written there is no other one:
 * it might be written before, by another stream. And the page is pinned in one context. */
static bool may_number(struct gpc_event_page *page, struct polled *p, const struct gpc_route *on)
{
    if (page->told)
        return true;
    return is_written(page) && gpc_session_has(on->session, GP_OP_gp_event_record) &&
           is_over(page, p, __atomic_load_n(&p->given, __ATOMIC_RELAXED)) &&
           is_of_page(page, on->context);
}

bool gpc_event_numbered(const struct gpc_route *on, CUevent event, struct gpc_event_record *out)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    if (!p)
        p = fresh_polled(event, &page);
    if (!p)
        return false;
    bool numbered = on->context && gpc_session_of_handle((uint64_t)event) == on->session &&
                    !gpc_capture_active() && !gpc_session_sync() && may_number(page, p, on);
    *out = (struct gpc_event_record){
        .told = page->told,
        .place = gp_handle_index((uint64_t)event),
        .number = numbered ? __atomic_add_fetch(&page->last, 1, __ATOMIC_RELAXED) : 0,
    };
    if (numbered) {
        __atomic_store_n(&p->asked, gp_now_ns(), __ATOMIC_RELAXED);
        __atomic_store_n(&p->given, out->number, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&p->number, out->number, __ATOMIC_RELAXED);
    __atomic_store_n(&p->idle, NULL, __ATOMIC_RELAXED);
    return numbered;
}

bool gpc_event_over_at_once(const struct gpc_route *on, CUevent event, bool *is_so)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    bool timed = false;
    struct gpc_session *s = on->session;
    if (gpc_session_of_handle((uint64_t)event) != s || gpc_capture_active() || gpc_session_sync() ||
        !gpc_session_has(s, GP_OP_gp_event_record_idle))
        return false;
    if (!p && is_fresh(event, &timed) && !timed && (page = page_of(s)) != NULL)
        p = polled_make(event, page, false, false);
    /* of the times of timed ones the driver knows later */
    if (!p || __atomic_load_n(&p->timed, __ATOMIC_RELAXED) ||
        !is_over(page, p, __atomic_load_n(&p->given, __ATOMIC_RELAXED)))
        return false;
    uint64_t number = __atomic_add_fetch(&page->last, 1, __ATOMIC_RELAXED);
    number_note(&p->over, number);
    __atomic_store_n(&p->number, number, __ATOMIC_RELAXED);
    *is_so = __atomic_exchange_n(&p->idle, on->context, __ATOMIC_RELAXED) == on->context;
    return true;
}

/* Whether the worker is to be asked again for an event that is not over. */
static bool is_time(struct polled *p)
{
    uint64_t now = gp_now_ns();
    if (now - __atomic_load_n(&p->asked, __ATOMIC_RELAXED) < ASK_NS)
        return false;
    __atomic_store_n(&p->asked, now, __ATOMIC_RELAXED);
    return true;
}

/* What is known of this record of the event. */
static bool record_told(struct gpc_session *s, struct gpc_event_page *page, struct polled *p,
                        uint64_t number, CUresult *r)
{
    if (!number || gpc_capture_active() || !gpc_session_works(s))
        return false;
    struct fresh *fresh = &page->fresh[__atomic_load_n(&p->timed, __ATOMIC_RELAXED)];
    if (__atomic_exchange_n(&p->guessed, false, __ATOMIC_RELAXED))
        fresh_count(fresh, &fresh->asked);
    bool over = is_over(page, p, number);
    if (page->told && !over) {
        gpc_session_poll(s);
        over = is_over(page, p, number);
    }
    bool comes = is_written(page) && __atomic_load_n(&p->untold, __ATOMIC_RELAXED) < number;
    if (!over && (!comes || (!page->told && is_time(p)))) /* who tells, tells of errors, too */
        return false;
    if (!page->told)         /* by the GPU, and not in the order of what the worker says */
        gpc_session_poll(s); /* what failed before has been told before */
    if (!page->told && over && gpc_pinned_expects(s))
        return false; /* the GPU has done it; the worker says when the bytes are here */
    gpc_thread()->last = s;
    *r = (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED);
    if (*r == CUDA_SUCCESS && !over)
        *r = CUDA_ERROR_NOT_READY;
    if (over)
        gpc_mapped_waited();
    return true;
}

bool gpc_event_told(CUevent event, CUresult *r)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    return p && record_told(gpc_session_of_handle((uint64_t)event), page, p,
                            __atomic_load_n(&p->number, __ATOMIC_RELAXED), r);
}

/* What is looked for. */
struct record {
    struct gpc_event_page *page;
    struct polled *p;
    uint64_t number;
};

static bool record_is_over(const void *what)
{
    const struct record *r = what;
    return is_over(r->page, r->p, r->number);
}

/* What kernels have printed is there with the worker's answer alone. */
static bool may_end(const struct gpc_session *s, const struct gpc_event_page *page)
{
    return page->waits && word(page, GP_EVENT_PAGE_PRINTS) == 0 && !gpc_capture_active() &&
           !gpc_session_sync() && gpc_session_works(s) && !gpc_pinned_expects(s);
}

static void record_waited(struct gpc_session *s, uint64_t begin, bool at_once)
{
    gpc_session_poll(s); /* what failed before has been told before */
    gpc_mapped_waited();
    gpc_thread()->last = s;
    gpc_thread()->may_end = true;
    if (at_once)
        return;
    GPC_STATS_ADD(waited_ns, gp_now_ns() - begin);
    GPC_STATS_ADD(gpu_waits, 1);
    if (GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        gpc_timeline_wait("answer", begin);
}

/* By what the GPU writes. A kernel that prints, launched before the record, is told of before that. */
static bool gpu_awaited(struct gpc_session *s, const struct record *what, CUresult *r)
{
    uint64_t begin = gp_now_ns();
    bool may = what->number && may_end(s, what->page), at_once = may && record_is_over(what);
    CUcontext context = __atomic_load_n(&what->page->context, __ATOMIC_RELAXED);
    bool spins = may && !at_once && is_written(what->page) && gpc_spin_may(context);
    bool over = at_once || (spins && gpc_spin(record_is_over, what, NULL));
    if (!over || !may_end(s, what->page))
        return false;
    record_waited(s, begin, at_once);
    *r = (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED);
    return true;
}

/* Of the record that there is now, whatever another thread records meanwhile. */
bool gpc_event_awaited(CUevent event, CUresult *r)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    struct gpc_session *s = p ? gpc_session_of_handle((uint64_t)event) : NULL;
    uint64_t number = p ? __atomic_load_n(&p->number, __ATOMIC_RELAXED) : 0, begin = 0;
    if (!p)
        return false;
    if (!page->told)
        return gpu_awaited(s, &(struct record){page, p, number}, r);
    for (;;) {
        uint64_t seen = gpc_session_notices(s);
        if (!record_told(s, page, p, number, r))
            return false;
        if (*r != CUDA_ERROR_NOT_READY)
            break;
        if (!begin) {
            begin = gp_now_ns();
            GPC_STATS_ADD(round_trips, 1);
        }
        if (gpc_session_wait_notice(s, seen) != CUDA_SUCCESS)
            return false;
    }
    if (begin)
        GPC_STATS_ADD(waited_ns, gp_now_ns() - begin);
    return true;
}

/* It has been asked for: from now on its records bring numbers. */
static void become_polled(CUevent event)
{
    struct gpc_event_page *page;
    bool timed;
    if (!is_fresh(event, &timed) || gpc_capture_active() ||
        !(page = page_open(gpc_session_of_handle((uint64_t)event))))
        return;
    fresh_count(&page->fresh[timed], &page->fresh[timed].asked);
    polled_make(event, page, timed, false);
}

void gpc_event_asked(CUevent event, uint64_t number, CUresult r, bool waited)
{
    struct gpc_event_page *page;
    struct polled *p = polled_of(event, &page);
    bool timed, fresh = is_fresh(event, &timed);
    /* nothing comes between the times of who waits for the second of two events */
    const struct gpc_session *s = gpc_session_of_handle((uint64_t)event);
    bool page_waits = s &&
                      (!gpc_session_shares(s) || gpc_session_has(s, GP_OP_gp_event_record_idle));
    if (waited && (timed || !page_waits))
        fresh = false;
    if (fresh && (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY))
        become_polled(event);
    if (p && number && r == CUDA_SUCCESS)
        number_note(&p->over, number);
}
