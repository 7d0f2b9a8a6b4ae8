/* The worker's waits by themselves: in which order they are polled and cancelled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "loop.h"
#include "story.h"

/* --- what every test begins and ends with ------------------------------------------- */

static struct gpw_session session;

static int begin(void **state)
{
    (void)state;
    session = (struct gpw_session){.driver = NULL};
    story[0] = '\0';
    return 0;
}

static int end(void **state)
{
    (void)state;
    return session.waits ? -1 : 0;
}

/* --- waits by themselves -------------------------------------------------------------- */

struct letter {
    struct gpw_wait wait;
    char letter;
    bool ready;
    unsigned polls;      /* that it takes */
    struct letter *then; /* to add when it is done */
};

static bool letter_ready(struct gpw_session *s, struct gpw_wait *w)
{
    assert_ptr_equal(s, &session);
    return ((struct letter *)w)->ready;
}

static bool letter_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct letter *l = (struct letter *)w;
    tell(l->letter);
    if (--l->polls > 0)
        return false;
    if (l->then)
        gpw_wait_add(s, &l->then->wait);
    return true;
}

static void letter_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    assert_ptr_equal(s, &session);
    tell('!');
    tell(((struct letter *)w)->letter);
}

static struct letter letter_of(char letter, bool ready, unsigned polls)
{
    return (struct letter){.wait = {letter_ready, letter_poll, letter_cancel, false, NULL, NULL},
                           .letter = letter,
                           .ready = ready,
                           .polls = polls};
}

static void no_waits_is_no_work(void **state)
{
    (void)state;
    gpw_waits_poll(&session);
    gpw_waits_cancel(&session);
    assert_null(session.waits);
    assert_null(session.waits_last);
}

static void the_oldest_that_is_ready_goes_first(void **state)
{
    (void)state;
    struct letter a = letter_of('a', false, 1), b = letter_of('b', true, 1);
    struct letter c = letter_of('c', false, 1), d = letter_of('d', true, 1);
    gpw_wait_add(&session, &a.wait);
    gpw_wait_add(&session, &b.wait);
    gpw_wait_add(&session, &c.wait);
    gpw_wait_add(&session, &d.wait);
    gpw_waits_poll(&session);
    expect_story("bd");
    gpw_waits_poll(&session);
    expect_story("");
    c.ready = true;
    gpw_waits_poll(&session);
    expect_story("c");
    a.ready = true;
    gpw_waits_poll(&session);
    expect_story("a");
    assert_null(session.waits);
}

/* Its stream went on between two questions. */
static bool ready_when_asked_again(struct gpw_session *s, struct gpw_wait *w)
{
    bool was = letter_ready(s, w);
    ((struct letter *)w)->ready = true;
    return was;
}

/* The copy and the wait behind it are over after the first was asked, and before the
 * second is: whoever waits behind the copy was told of its end before it arrived. */
static struct letter *all_over_at_once;

static bool ends_when_asked(struct gpw_session *s, struct gpw_wait *w)
{
    bool was = letter_ready(s, w);
    for (struct letter *l = all_over_at_once; l; l = l->then)
        l->ready = true;
    return was;
}

static void nothing_overtakes_what_ends_between_two_questions(void **state)
{
    (void)state;
    struct letter copy = letter_of('c', false, 1), behind = letter_of('b', false, 1);
    struct letter other = letter_of('o', true, 1);
    copy.wait.ready = ends_when_asked;
    all_over_at_once = &behind;
    gpw_wait_add(&session, &copy.wait);
    gpw_wait_add(&session, &behind.wait);
    gpw_wait_add(&session, &other.wait);
    gpw_waits_poll(&session);
    expect_story("o"); /* the copy was not over when it was asked */
    copy.ready = true;
    gpw_waits_poll(&session);
    expect_story("cb");
}

/* A host function of a graph was made before the copy, and its launch stands behind it. */
static void what_recurs_is_told_behind_younger_ones(void **state)
{
    (void)state;
    struct letter function = letter_of('f', true, 1), copy = letter_of('c', false, 1);
    struct letter other = letter_of('o', true, 1);
    function.wait.recurs = true;
    gpw_wait_add(&session, &function.wait);
    gpw_wait_add(&session, &copy.wait);
    gpw_wait_add(&session, &other.wait);
    copy.ready = true;
    gpw_waits_poll(&session);
    expect_story("cof");
}

/* --- a GPU that works while it is asked ---------------------------------------------------- */

#define LANES 4
#define STEPS 60

/* Streams do their work in order, a step at a time, at moments that a seed chooses. A
 * wait's marks say how far each stream has to be: one for a stream's own, several for
 * a context's or for an event's behind which other streams' work lies. */
static struct lanes {
    unsigned submitted[LANES], done[LANES];
    uint32_t seed;
    struct mark_wait {
        struct gpw_wait wait;
        unsigned marks[LANES];
        bool told;
    } waits[STEPS];
    unsigned count;
} lanes;

static uint32_t pick(uint32_t n)
{
    lanes.seed = lanes.seed * 1664525u + 1013904223u;
    return (lanes.seed >> 8) % n;
}

static void lanes_work(void)
{
    for (unsigned n = pick(3); n > 0; n--) {
        unsigned i = pick(LANES);
        if (lanes.done[i] < lanes.submitted[i])
            lanes.done[i]++;
    }
}

static bool mark_ready(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    lanes_work();
    for (unsigned i = 0; i < LANES; i++)
        if (lanes.done[i] < ((struct mark_wait *)w)->marks[i])
            return false;
    return true;
}

/* What `w` stands behind is what waits for no more than it does, and was added before. */
static bool mark_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct mark_wait *m = (struct mark_wait *)w;
    (void)s;
    lanes_work();
    for (struct mark_wait *older = lanes.waits; older < m; older++) {
        bool behind = true;
        for (unsigned i = 0; i < LANES; i++)
            behind &= older->marks[i] <= m->marks[i];
        assert_true(older->told || !behind);
    }
    m->told = true;
    return true;
}

static void lanes_add(void)
{
    struct mark_wait *m = &lanes.waits[lanes.count++];
    unsigned of = pick(2 * LANES);
    *m = (struct mark_wait){.wait = {.ready = mark_ready, .poll = mark_poll}};
    for (unsigned i = 0; i < LANES; i++)
        if (of >= LANES ? pick(2) : i == of)
            m->marks[i] = lanes.submitted[i];
    gpw_wait_add(&session, &m->wait);
}

static void whatever_ends_while_asking_nothing_is_told_too_early(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 2000; seed++) {
        lanes = (struct lanes){.seed = seed};
        while (lanes.count < STEPS) {
            lanes.submitted[pick(LANES)]++;
            if (pick(2))
                lanes_add();
            if (pick(4) == 0)
                gpw_waits_poll(&session);
        }
        for (unsigned n = 0; session.waits; n++) {
            assert_true(n < 100000);
            gpw_waits_poll(&session);
        }
        for (unsigned i = 0; i < STEPS; i++)
            assert_true(lanes.waits[i].told);
    }
}

/* One whose poll asks again, as a call that was put off does. */
static struct letter asks_within;

static bool polls_within(struct gpw_session *s, struct gpw_wait *w)
{
    tell(((struct letter *)w)->letter);
    gpw_waits_poll(s);
    tell(')');
    return true;
}

static void a_poll_within_a_poll_keeps_the_order(void **state)
{
    (void)state;
    struct letter a = letter_of('a', true, 1), b = letter_of('b', true, 1);
    struct letter late = letter_of('l', false, 1);
    asks_within = letter_of('(', true, 1);
    asks_within.wait.poll = polls_within;
    late.wait.ready = ready_when_asked_again;
    gpw_wait_add(&session, &late.wait);
    gpw_wait_add(&session, &a.wait);
    gpw_wait_add(&session, &asks_within.wait);
    gpw_wait_add(&session, &b.wait);
    gpw_waits_poll(&session);
    expect_story("a(bl)");
    assert_false(gpw_waits_any(&session));
}

static void without_a_question_it_is_ready(void **state)
{
    (void)state;
    struct letter a = letter_of('a', false, 1);
    a.wait.ready = NULL;
    gpw_wait_add(&session, &a.wait);
    gpw_waits_poll(&session);
    expect_story("a");
}

static void one_that_takes_long_is_polled_once_a_pass(void **state)
{
    (void)state;
    struct letter a = letter_of('a', true, 3), b = letter_of('b', true, 1);
    gpw_wait_add(&session, &a.wait);
    gpw_wait_add(&session, &b.wait);
    gpw_waits_poll(&session);
    expect_story("ab");
    gpw_waits_poll(&session);
    expect_story("a");
    gpw_waits_poll(&session);
    expect_story("a");
    gpw_waits_poll(&session);
    expect_story("");
}

static void what_a_poll_adds_is_not_lost(void **state)
{
    (void)state;
    struct letter b = letter_of('b', true, 1), c = letter_of('c', false, 1);
    struct letter a = letter_of('a', true, 1);
    a.then = &b;
    b.then = &c;
    gpw_wait_add(&session, &a.wait);
    gpw_waits_poll(&session);
    expect_story("a");
    gpw_waits_poll(&session);
    expect_story("b");
    gpw_waits_poll(&session);
    expect_story("");
    assert_ptr_equal(session.waits, &c.wait);
    assert_ptr_equal(session.waits_last, &c.wait);
    c.ready = true;
    gpw_waits_poll(&session);
    expect_story("c");
}

static void cancelled_are_all_in_order_and_none_is_polled(void **state)
{
    (void)state;
    struct letter a = letter_of('a', true, 1), b = letter_of('b', false, 1);
    struct letter c = letter_of('c', true, 9);
    gpw_wait_add(&session, &a.wait);
    gpw_wait_add(&session, &b.wait);
    gpw_wait_add(&session, &c.wait);
    gpw_waits_cancel(&session);
    expect_story("!a!b!c");
    gpw_waits_poll(&session);
    expect_story("");
    struct letter d = letter_of('d', true, 1); /* the list is whole */
    gpw_wait_add(&session, &d.wait);
    gpw_waits_poll(&session);
    expect_story("d");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(no_waits_is_no_work),
        TEST(the_oldest_that_is_ready_goes_first),
        TEST(nothing_overtakes_what_ends_between_two_questions),
        TEST(what_recurs_is_told_behind_younger_ones),
        TEST(whatever_ends_while_asking_nothing_is_told_too_early),
        TEST(a_poll_within_a_poll_keeps_the_order),
        TEST(without_a_question_it_is_ready),
        TEST(one_that_takes_long_is_polled_once_a_pass),
        TEST(what_a_poll_adds_is_not_lost),
        TEST(cancelled_are_all_in_order_and_none_is_polled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
