/* One instruction on one set of operands, as the tests of the arithmetic ask for it. */
#ifndef ARITH_CHECK_H
#define ARITH_CHECK_H

#include "ptx_op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The operands go into the first and the last lane, with rubbish in between. */
static inline uint64_t run_wide(const struct sg_insn *in, const uint64_t v[4])
{
    uint64_t lanes[4][SG_LANES];
    uint64_t d[SG_LANES];
    const uint64_t *s[4] = {lanes[0], lanes[1], lanes[2], lanes[3]};
    for (unsigned k = 0; k < 4; k++)
        for (unsigned l = 0; l < SG_LANES; l++)
            lanes[k][l] = l == 0 || l == SG_LANES - 1 ? v[k]
                                                      : UINT64_C(0x9e3779b97f4a7c15) * (l + k);
    if (in->op == SG_P_LOP3) /* an immediate is the same in all lanes */
        for (unsigned l = 0; l < SG_LANES; l++)
            lanes[3][l] = v[3];
    sg_pure handler = sg_pure_select(in);
    if (!handler)
        fail_msg("no handler for op %u of type %u, %u", in->op, in->type, in->type2);
    handler(in, s, d);
    assert_int_equal(d[0], d[SG_LANES - 1]);
    return d[0];
}

static inline uint64_t run(struct sg_insn in, unsigned sources, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t v[4] = {a, b, c, 0};
    in.sources = (uint8_t)sources;
    return run_wide(&in, v);
}

#define INSN(...) ((struct sg_insn){__VA_ARGS__})
#define RUN1(insn, a) run(insn, 1, a, 0, 0)
#define RUN2(insn, a, b) run(insn, 2, a, b, 0)
#define RUN3(insn, a, b, c) run(insn, 3, a, b, c)

#define check(got, want, ...)                                                                      \
    do {                                                                                           \
        uint64_t got_ = (got);                                                                     \
        uint64_t want_ = (want);                                                                   \
        if (got_ != want_) {                                                                       \
            print_error(__VA_ARGS__);                                                              \
            fail_msg(": %#llx instead of %#llx", (unsigned long long)got_,                         \
                     (unsigned long long)want_);                                                   \
        }                                                                                          \
    } while (0)

#endif
