/* cp.async in its forms, and mbarrier: suffixes and operands. */
#include "ptx_decode.h"

/* --- suffixes --------------------------------------------------------------------------------- */

/* Global or shared, in the order of the suffixes: where to, then where from. */
static bool spaces_read(const struct sg_statement *s, uint8_t space[2])
{
    unsigned count = 0;
    for (uint32_t i = 0; i < s->suffixes; i++) {
        const struct sg_token *t = &s->suffix[i];
        bool global = sg_token_is(t, ".global");
        if (!global && !sg_token_is(t, ".shared::cta") && !sg_token_is(t, ".shared::cluster"))
            continue;
        if (count == 2)
            return false;
        space[count++] = global ? SG_S_GLOBAL : SG_S_SHARED;
    }
    return count == 2;
}

static bool bulk_read(struct sg_statement *s, struct sg_insn *in)
{
    uint8_t space[2];
    bool reduces = sg_suffix(s, ".reduce");
    if (sg_suffix(s, ".cp_mask"))
        return false;
    if (sg_suffix(s, ".commit_group") || sg_suffix(s, ".wait_group") || sg_suffix(s, ".prefetch")) {
        in->op = SG_P_FENCE;
        return !reduces;
    }
    if (sg_suffix(s, ".tensor"))
        return sg_tensor_read(s, in);
    if (!spaces_read(s, space))
        return false;
    bool grouped = sg_suffix(s, ".bulk_group");
    in->op = SG_P_CP_BULK;
    in->space = space[0];
    in->mode = space[1];
    if (reduces) {
        in->op = SG_P_RED_BULK;
        if (space[1] != SG_S_SHARED || !sg_atomic_read(s, in))
            return false;
    }
    if (space[0] == SG_S_GLOBAL)
        return grouped && space[1] == SG_S_SHARED;
    return !grouped && sg_suffix(s, ".mbarrier::complete_tx::bytes");
}

bool sg_copy_read(struct sg_statement *s, struct sg_insn *in)
{
    if (!sg_suffix(s, ".async"))
        return false;
    if (sg_suffix(s, ".bulk"))
        return bulk_read(s, in);
    if (sg_suffix(s, ".reduce"))
        return false;
    if (sg_suffix(s, ".mbarrier")) {
        in->op = SG_P_MBARRIER;
        in->mode = sg_suffix(s, ".noinc") ? SG_Q_ARRIVE : SG_Q_ARRIVE_LATER;
        return sg_suffix(s, ".arrive");
    }
    if (sg_suffix(s, ".commit_group") || sg_suffix(s, ".wait_group") || sg_suffix(s, ".wait_all"))
        in->op = SG_P_FENCE;
    return true;
}

bool sg_mbarrier_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const names[] = {
        ".init",        ".inval",     ".arrive",   ".arrive_drop",   ".expect_tx",
        ".complete_tx", ".test_wait", ".try_wait", ".pending_count", NULL};
    static const uint8_t modes[] = {SG_Q_INIT, SG_Q_INVAL,  SG_Q_ARRIVE,
                                    SG_Q_DROP, SG_Q_EXPECT, SG_Q_COMPLETE,
                                    SG_Q_TEST, SG_Q_TEST,   SG_Q_PENDING};
    int i = sg_suffix_of(s, names);
    if (i < 0 || in->type != SG_T_B64)
        return false;
    in->mode = modes[i];
    bool expects = sg_suffix(s, ".expect_tx");
    if (in->mode == SG_Q_ARRIVE && expects)
        in->mode = SG_Q_ARRIVE_EXPECT;
    else if (in->mode == SG_Q_DROP && expects)
        in->mode = SG_Q_DROP_EXPECT;
    else if (in->mode == SG_Q_TEST && sg_suffix(s, ".parity"))
        in->mode = SG_Q_TEST_PARITY;
    in->polls = in->mode == SG_Q_TEST || in->mode == SG_Q_TEST_PARITY;
    return in->space == SG_S_SHARED || in->space == SG_S_GENERIC;
}

/* --- operands --------------------------------------------------------------------------------- */

static struct sg_operand plain(struct sg_parser *p, const struct sg_statement *s, uint32_t i,
                               enum sg_type type)
{
    if (s->a[i].vector || s->a[i].address)
        sg_operands_refuse(p, s);
    return sg_atom_operand(p, s, &s->a[i].e[0], type);
}

/* [to], [from], size[, what follows] */
void sg_copy_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    bool bulk = in->op != SG_P_CP_ASYNC, barrier = bulk && in->space == SG_S_SHARED;
    uint32_t n = s->arguments, next = 3;
    if (n && sg_suffix(s, ".L2::cache_hint"))
        n--; /* the policy */
    struct sg_operand *x = sg_operands_take(p, in, SG_COPY_OPERANDS);
    if (n < (barrier ? 4u : 3u))
        sg_operands_refuse(p, s);
    x[SG_COPY_TO] = sg_address_operand(p, s, &s->a[0]);
    x[SG_COPY_FROM] = sg_address_operand(p, s, &s->a[1]);
    x[SG_COPY_SIZE] = plain(p, s, 2, SG_T_U32);
    if (barrier)
        x[SG_COPY_BARRIER] = sg_address_operand(p, s, &s->a[next++]);
    bool more = bulk ? sg_suffix(s, ".multicast::cluster") : n > next;
    if (more && n > next)
        x[SG_COPY_MORE] = plain(p, s, next++, SG_T_U32);
    if (n != next || (bulk && more && x[SG_COPY_MORE].kind == SG_O_NONE))
        sg_operands_refuse(p, s);
}

/* [result,] [barrier][, value[, time]]; pending_count: result, value */
void sg_mbarrier_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    uint32_t n = s->arguments, next = 0;
    bool waits = in->mode == SG_Q_TEST || in->mode == SG_Q_TEST_PARITY;
    struct sg_operand *x = sg_operands_take(p, in, SG_BARRIER_OPERANDS);
    if (n && !s->a[0].address)
        x[SG_BARRIER_RESULT] = plain(p, s, next++, waits ? SG_T_PRED : SG_T_B64);
    if (in->mode != SG_Q_PENDING) {
        if (next == n)
            sg_operands_refuse(p, s);
        x[SG_BARRIER_AT] = sg_address_operand(p, s, &s->a[next++]);
    }
    if (next < n)
        x[SG_BARRIER_VALUE] = plain(p, s, next++, SG_T_B64);
    if (waits && next < n)
        next++; /* how long it may be suspended */
    bool plain_arrival = in->mode == SG_Q_ARRIVE || in->mode == SG_Q_DROP ||
                         in->mode == SG_Q_ARRIVE_LATER || in->mode == SG_Q_INVAL;
    if (next != n || (x[SG_BARRIER_VALUE].kind == SG_O_NONE && !plain_arrival))
        sg_operands_refuse(p, s);
}
