/* Where a client lets a transport write: into what an answer or a notice was asked for, once, and
 * never behind the end of its session. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include "fake_worker.h"
#include "landing.h"

#define BYTES 4096u

/* What the client asked of the transport, and what that says. */
static struct {
    gp_land_fn *ask;
    void *owner;
    bool landed;
    unsigned grounded;
} there;

static void land(struct gp_channel *ch, gp_land_fn *ask, void *owner)
{
    (void)ch;
    there.ask = ask;
    there.owner = owner;
}

static bool landed(const struct gp_channel *ch)
{
    (void)ch;
    return there.landed;
}

static void ground(struct gp_channel *ch)
{
    (void)ch;
    there.grounded++;
}

static struct gpc_session *session(void)
{
    static struct gp_transport transport;
    struct gpc_session *s = fake_session();
    transport = fake_transport;
    transport.land = land;
    transport.landed = landed;
    transport.ground = ground;
    s->transport = &transport;
    memset(&there, 0, sizeof there);
    gpc_landing_start(s);
    return s;
}

/* A download that is under way. */
struct download {
    struct gpc_call call;
    struct gp_req_gp_dtoh request;
    struct gp_rep_gp_dtoh reply;
    char to[BYTES];
};

static void download_begin(struct download *d, struct gpc_session *s)
{
    memset(d, 0, sizeof *d);
    d->request.h.op = GP_OP_gp_dtoh;
    d->call.route = gpc_route_to(s);
    d->call.request = &d->request.h;
    d->call.request_size = sizeof d->request;
    d->call.reply = &d->reply.r;
    d->call.reply_size = sizeof d->reply;
    gpc_call_out(&d->call, d->to, BYTES, 1, offsetof(struct gp_rep_gp_dtoh, n_data));
    assert_int_equal(gpc_call_begin(&d->call), CUDA_SUCCESS);
}

#define ANSWER_SIZE (sizeof(struct gp_rep_gp_dtoh) + BYTES)

static struct gp_rep_gp_dtoh answer_to(const struct download *d)
{
    return (struct gp_rep_gp_dtoh){
        .r.h = {.size = ANSWER_SIZE, .flags = GP_FLAG_REPLY, .seq = d->call.seq}, .n_data = BYTES};
}

static bool asks(const void *head, size_t size, size_t whole, struct gp_landing *to)
{
    unsigned char bytes[GP_MESSAGE_HEAD] = {0};
    memcpy(bytes, head, size);
    *to = (struct gp_landing){NULL, 0, 0};
    return there.ask(there.owner, bytes, whole, to);
}

static void an_answer_lands_where_it_was_asked_for(void **state)
{
    (void)state;
    static struct download d;
    struct gpc_session *s = session();
    struct gp_landing to;
    char tail[BYTES];
    memset(tail, 'x', sizeof tail);
    download_begin(&d, s);
    struct gp_rep_gp_dtoh a = answer_to(&d);
    assert_true(asks(&a, sizeof a, ANSWER_SIZE, &to));
    assert_ptr_equal(to.to, d.to);
    assert_int_equal(to.begin, sizeof a);
    assert_int_equal(to.size, BYTES);
    memset(d.to, 'y', sizeof d.to);
    there.landed = true;
    fake_answer(d.call.seq, &a.r, sizeof a, tail, BYTES);
    assert_int_equal(gpc_call_finish(&d.call), CUDA_SUCCESS);
    assert_int_equal(d.call.out[0].got, BYTES);
    assert_int_equal(d.to[BYTES - 1], 'y'); /* of the message itself nothing was read */
    assert_int_equal(there.grounded, 0);
    assert_false(asks(&a, sizeof a, ANSWER_SIZE, &to)); /* nobody waits for it any more */
}

static void answers_that_land_nowhere(void **state)
{
    (void)state;
    static struct download d;
    struct gpc_session *s = session();
    struct gp_landing to;
    download_begin(&d, s);
    struct gp_rep_gp_dtoh lies[7];
    for (unsigned i = 0; i < 7; i++)
        lies[i] = answer_to(&d);
    lies[0].r.h.seq++;
    lies[1].r.result = CUDA_ERROR_INVALID_VALUE;
    lies[2].n_data = BYTES + 1;
    lies[3].n_data = UINT32_MAX;
    lies[4].r.h.size++;
    lies[5].r.h.flags = 0;
    lies[6].r.h.size = 16;
    for (unsigned i = 0; i < 7; i++)
        assert_false(asks(&lies[i], sizeof lies[i], i == 6 ? 16 : ANSWER_SIZE, &to));
    struct gp_rep_gp_dtoh a = answer_to(&d);
    assert_true(asks(&a, sizeof a, ANSWER_SIZE, &to));
    assert_false(asks(&a, sizeof a, ANSWER_SIZE, &to)); /* once */
    /* one that is lent, while another is said to be on its way there */
    static const char tail[BYTES];
    there.landed = false;
    fake_answer(d.call.seq, &a.r, sizeof a, tail, BYTES);
    assert_int_not_equal(gpc_call_finish(&d.call), CUDA_SUCCESS);
    assert_true(there.grounded > 0);
    assert_false(gpc_session_works(s));
}

/* --- notices ------------------------------------------------------------------------------ */

#define NOTICE_SIZE (sizeof(struct gp_req_gp_pinned_data) + 64)

static struct gp_req_gp_pinned_data notice(uint64_t cookie, uint64_t offset, uint32_t bytes)
{
    return (struct gp_req_gp_pinned_data){.h = {.op = GP_OP_gp_pinned_data, .size = NOTICE_SIZE},
                                          .cookie = cookie,
                                          .offset = offset,
                                          .bytes = bytes,
                                          .n_data = bytes};
}

static void a_notice_lands_in_its_copy(void **state)
{
    (void)state;
    struct gpc_session *s = session();
    struct gp_landing to;
    char pinned[128];
    memset(pinned, 'a', sizeof pinned);
    uint64_t cookie = gpc_pinned_expect(s, pinned, sizeof pinned);
    struct gp_req_gp_pinned_data lies[] = {
        notice(cookie + 1, 0, 64), notice(cookie, 65, 64), notice(cookie, UINT64_MAX, 64),
        notice(cookie, 128, 1),    notice(cookie, 0, 65),  notice(cookie, 0, UINT32_MAX),
        notice(cookie, 0, 64),
    };
    lies[6].n_data = 32;
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++)
        assert_false(asks(&lies[i], sizeof lies[i], NOTICE_SIZE, &to));
    for (unsigned i = 0; i < 2; i++) {
        struct gp_req_gp_pinned_data q = notice(cookie, i * 64, 64);
        q.last = i == 1;
        assert_true(asks(&q, sizeof q, NOTICE_SIZE, &to));
        assert_ptr_equal(to.to, pinned + i * 64);
        assert_int_equal(to.begin, sizeof q);
        assert_int_equal(to.size, 64);
        there.landed = true;
        gpc_on_gp_pinned_data(s, &q, NULL); /* it is there already */
    }
    assert_false(gpc_pinned_expects(s));
    assert_true(gpc_session_works(s));
    assert_int_equal(gpc_pinned_settle(pinned, sizeof pinned), CUDA_SUCCESS);
}

/* The last one is not taken while others are being written: the memory would be the program's. */
static void more_behind_the_last(void **state)
{
    (void)state;
    struct gpc_session *s = session();
    struct gp_landing to;
    char pinned[128];
    uint64_t cookie = gpc_pinned_expect(s, pinned, sizeof pinned);
    struct gp_req_gp_pinned_data more = notice(cookie, 0, 64), last = notice(cookie, 64, 64);
    last.last = 1;
    assert_true(asks(&last, sizeof last, NOTICE_SIZE, &to));
    assert_true(asks(&more, sizeof more, NOTICE_SIZE, &to));
    there.landed = true;
    gpc_on_gp_pinned_data(s, &last, NULL);
    assert_true(there.grounded > 0);
    assert_false(gpc_session_works(s));
    assert_false(gpc_pinned_expects(s));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_lands_where_it_was_asked_for),
        cmocka_unit_test(answers_that_land_nowhere),
        cmocka_unit_test(a_notice_lands_in_its_copy),
        cmocka_unit_test(more_behind_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
