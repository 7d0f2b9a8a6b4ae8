/* Before work that may see managed memory: what the host has written goes over, and what the
 * work may change is closed here. */
#include <string.h>

#include "call.h"
#include "context.h"
#include "fault_chain.h"
#include "managed_internal.h"
#include "session.h"
#include "stream.h"

/* Everything here is under managed.c's lock. */
static uint64_t epoch, all_epoch; /* of the last work; of the last that may see all of it */
static bool some_open = true;     /* some memory that work may see has a block that is not STALE */
static struct busy {
    CUcontext context;
    uint64_t epoch; /* of the last work that was submitted there */
    bool mapped;    /* some of it may change mapped memory */
} busy[GPC_MANAGED_CONTEXTS];
static unsigned busy_count;

uint64_t gpc_managed_epoch(void)
{
    return epoch;
}

uint64_t gpc_managed_touched_at(const struct gpc_managed *m)
{
    return m->attached == CU_MEM_ATTACH_HOST || m->epoch > all_epoch ? m->epoch : all_epoch;
}

void gpc_managed_note_open(void)
{
    some_open = true;
}

/* --- contexts that may have work under way ------------------------------------------------------ */

static void busy_remove(unsigned i)
{
    busy[i] = busy[--busy_count];
}

static void busy_note(CUcontext context, bool mapped)
{
    unsigned i = 0;
    while (i < busy_count && busy[i].context != context)
        i++;
    for (unsigned k = 0; i == GPC_MANAGED_CONTEXTS && k < busy_count; k++)
        if (!gpc_context_live(busy[k].context))
            busy_remove(k), i = busy_count;
    if (i == GPC_MANAGED_CONTEXTS)
        i--; /* more contexts than programs have */
    bool before = i < busy_count && busy[i].context == context && busy[i].mapped;
    busy[i] = (struct busy){context, epoch, mapped || before};
    if (i >= busy_count)
        busy_count = i + 1;
}

bool gpc_managed_busy_mapped(void)
{
    for (unsigned i = 0; i < busy_count; i++)
        if (busy[i].mapped && gpc_context_live(busy[i].context))
            return true;
    return false;
}

unsigned gpc_managed_busy_all(CUcontext contexts[GPC_MANAGED_CONTEXTS])
{
    unsigned n = 0;
    for (unsigned i = 0; i < busy_count; i++)
        if (gpc_context_live(busy[i].context))
            contexts[n++] = busy[i].context;
    return n;
}

unsigned gpc_managed_busy(const struct gpc_managed *m, CUcontext contexts[GPC_MANAGED_CONTEXTS])
{
    unsigned n = 0;
    for (unsigned i = 0; i < busy_count; i++)
        if (gpc_session_of_handle((uint64_t)busy[i].context) ==
                gpc_session_of_handle((uint64_t)m->context) &&
            gpc_context_live(busy[i].context))
            contexts[n++] = busy[i].context;
    return n;
}

void gpc_managed_idle(const CUcontext *contexts, unsigned count, uint64_t up_to)
{
    for (unsigned c = 0; c < count; c++)
        for (unsigned i = 0; i < busy_count; i++)
            if (busy[i].context == contexts[c] && busy[i].epoch <= up_to) {
                busy_remove(i);
                break;
            }
}

/* --- handing over ------------------------------------------------------------------------------- */

/* What is to be waited for at the end of a handing over. */
struct over {
    const struct gpc_session *session;
    uint64_t stream;          /* of the call, as it travels; 0: none */
    bool writes;              /* the GPU may change what it sees */
    struct gpc_managed *sent; /* the last whose bytes are on their way */
};

/* Streams of ours have brought something: what follows waits for them, over there. */
static void fence(struct over *o, struct gpc_managed *next)
{
    if (!o->sent || (next && next->own == o->sent->own))
        return;
    const struct gpc_route on = gpc_route_in(o->sent->context);
    gpc_stream_fence(&on, o->sent->own);
    o->sent = NULL;
}

/* From `at` on, the next run of blocks that the host has written, before `until`: its end; 0: none. */
static uint32_t next_written(const struct gpc_managed *m, uint32_t *at, uint32_t until)
{
    while (*at < until && m->state[*at] != GPC_BLOCK_WRITTEN)
        ++*at;
    uint32_t end = *at;
    while (end < until && m->state[end] == GPC_BLOCK_WRITTEN)
        end++;
    return end > *at ? end : 0;
}

void gpc_managed_bring_written(struct gpc_managed *m, uint32_t first, uint32_t until)
{
    for (uint32_t at = first, end; (end = next_written(m, &at, until)) != 0; at = end)
        gpc_managed_bring_there(m, at, end - at);
}

static void bring_written(struct gpc_managed *m, struct over *o)
{
    for (uint32_t at = 0, end; (end = next_written(m, &at, m->blocks)) != 0; at = end) {
        if (!o->writes) /* with too many mappings it stays what it is, and goes over again */
            gpc_managed_set(m, at, end - at, GPC_BLOCK_SAME);
        fence(o, m);
        if (gpc_managed_bring_there(m, at, end - at))
            o->sent = m;
    }
}

/* Closed before it is read: who still writes there faults, and comes behind the work. */
static void hand_over(struct gpc_managed *m, struct over *o)
{
    if (gpc_session_of_handle((uint64_t)m->context) != o->session)
        return;
    m->epoch = epoch;
    if (!m->open)
        return;
    gpc_fault_chain_check();
    int r = o->writes ? gpc_area_protect(m->begin, m->bytes, GPC_OPEN_NOT) : 0;
    bring_written(m, o);
    if (r == 0 && o->writes)
        r = gpc_managed_set(m, 0, m->blocks, GPC_BLOCK_STALE);
    if (r != 0)
        gpc_log(GPC_LOG_ERROR,
                "managed memory at %#llx stays open to the host while the GPU uses it: %s; "
                "raise vm.max_map_count",
                (unsigned long long)m->begin, strerror(-r));
}

/* Kernels see what is attached to nobody, and what is attached to their stream. */
static bool is_seen(const struct gpc_managed *m, const struct over *o)
{
    return m->attached == CU_MEM_ATTACH_GLOBAL ||
           (m->attached == CU_MEM_ATTACH_SINGLE && m->attached_to == o->stream);
}

static void hand_over_seen(struct gpc_managed *m, void *arg)
{
    struct over *o = arg;
    if (is_seen(m, o))
        hand_over(m, o);
    some_open |= m->open && m->attached != CU_MEM_ATTACH_HOST;
}

/* --- calls -------------------------------------------------------------------------------------- */

static uint64_t field(const struct gp_header *h, uint16_t at)
{
    uint64_t value = 0;
    if (at)
        memcpy(&value, (const char *)h + at, sizeof value);
    return value;
}

/* The managed memory that the call names. True: it names addresses, so it sees nothing else. */
static bool named(const struct gpc_call *call, const struct gp_op_info *op,
                  struct gpc_managed *found[GPC_CALL_ADDRESSES])
{
    const uint64_t ends[GPC_CALL_ADDRESSES] = {field(call->request, op->dst_at),
                                               field(call->request, op->src_at)};
    const uint64_t *at = op->dst_at ? ends : call->address;
    unsigned count = op->dst_at ? GPC_CALL_ADDRESSES : call->address_count;
    if (op->work == GP_WORK_KERNEL || op->work == GP_WORK_GRAPH || count == 0 ||
        count > GPC_CALL_ADDRESSES)
        return false;
    for (unsigned i = 0; i < count; i++)
        found[i] = gpc_managed_find(at[i]);
    return true;
}

static bool prepare(const struct gpc_call *call, const struct gp_op_info *op, struct over *o)
{
    struct gpc_managed *found[GPC_CALL_ADDRESSES] = {NULL};
    bool only = named(call, op, found);
    if (only && !found[0] && !found[1])
        return false;
    epoch++;
    bool writes = o->writes;
    for (unsigned i = 0; i < GPC_CALL_ADDRESSES; i++) {
        /* what a copy only reads stays here: pinned memory is written again and again */
        o->writes = writes && !(i == 1 && op->dst_at && found[i] && found[i]->twin);
        if (found[i])
            hand_over(found[i], o);
    }
    o->writes = writes;
    if (!only)
        all_epoch = epoch;
    if (!only && some_open) {
        some_open = false;
        gpc_managed_each(hand_over_seen, o);
    }
    fence(o, NULL);
    if (call->route.context)
        busy_note(call->route.context, !only || (found[0] && found[0]->twin));
    return true;
}

bool gpc_managed_before(struct gpc_call *call)
{
    const struct gp_op_info *op = &gp_op_table[call->request->op];
    if (!gpc_managed_any() || gpc_thread()->own_calls || (!op->work && !call->address_count))
        return false;
    struct over o = {.session = call->route.session,
                     .stream = field(call->request, op->stream_at),
                     .writes = op->work != GP_WORK_DOWNLOAD};
    struct gpc_own_calls before;
    gpc_managed_lock();
    gpc_own_calls_begin(&before);
    bool holds = prepare(call, op, &o);
    gpc_own_calls_end(&before);
    if (!holds)
        gpc_managed_unlock();
    return holds;
}

void gpc_managed_after(void)
{
    gpc_managed_unlock();
}
