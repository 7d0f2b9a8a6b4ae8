/* The worker's waits by themselves: in which order they are polled and cancelled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "loop.h"

/* --- what every test begins and ends with ------------------------------------------- */

static struct gpw_session session;

/* What happened, a letter each. */
static char story[256];

static void tell(char letter)
{
    size_t length = strlen(story);
    assert_true(length + 1 < sizeof story);
    story[length] = letter;
    story[length + 1] = '\0';
}

static void expect_story(const char *wanted)
{
    assert_string_equal(story, wanted);
    story[0] = '\0';
}

static int begin(void **state)
{
    (void)state;
    session = (struct gpw_session){.driver = NULL};
    session.waits_end = &session.waits;
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
    unsigned polls; /* that it takes */
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
    return (struct letter){.wait = {letter_ready, letter_poll, letter_cancel, NULL, 0},
                           .letter = letter, .ready = ready, .polls = polls};
}

static void no_waits_is_no_work(void **state)
{
    (void)state;
    gpw_waits_poll(&session);
    gpw_waits_cancel(&session);
    assert_null(session.waits);
    assert_ptr_equal(session.waits_end, &session.waits);
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

static void a_younger_one_does_not_overtake(void **state)
{
    (void)state;
    struct letter a = letter_of('a', false, 1), b = letter_of('b', false, 1);
    struct letter c = letter_of('c', true, 1);
    a.wait.ready = b.wait.ready = ready_when_asked_again;
    gpw_wait_add(&session, &a.wait);
    gpw_wait_add(&session, &b.wait);
    gpw_wait_add(&session, &c.wait);
    gpw_waits_poll(&session);
    expect_story("abc");
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
    expect_story("ab");
    assert_ptr_equal(session.waits, &c.wait);
    assert_ptr_equal(session.waits_end, &c.wait.next);
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
        TEST(a_younger_one_does_not_overtake),
        TEST(without_a_question_it_is_ready),
        TEST(one_that_takes_long_is_polled_once_a_pass),
        TEST(what_a_poll_adds_is_not_lost),
        TEST(cancelled_are_all_in_order_and_none_is_polled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
