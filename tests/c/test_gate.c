/* When work passes the gate, and when a turn is over. */
#include "gate_world.h"

static void a_closed_gate_holds_work_and_nothing_else(void **state)
{
    (void)state;
    world.closed = true;
    assert_false(submit());
    assert_true(gpw_gate_admit(&session, &other.h, &here));
    assert_false(gpw_gate_busy(&session));
    uint64_t before = world.now;
    assert_false(submit());
    gpw_gate_wait(&session, 500); /* sleeps at the board */
    assert_int_equal(world.now - before, 500000);
    world.closed = false;
    assert_true(submit());
    assert_true(gpw_gate_busy(&session));
}

static void work_that_is_over_gives_the_turn_back(void **state)
{
    (void)state;
    assert_true(submit());
    assert_int_equal(world.records, 1); /* the first is marked at once */
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    run(MS);
    assert_int_equal(world.idled, 1);
    assert_false(gpw_gate_busy(&session));
    assert_int_equal(world.given, world.taken);
}

/* Others who come must not wait for what was submitted before. */
static void little_is_submitted_ahead_while_others_wait(void **state)
{
    (void)state;
    world.contended = true;
    assert_int_equal(ahead(), 2);
    world.now += MS;
    world.passed = 1;
    assert_int_equal(ahead(), 1);
    end(NULL);
    begin(NULL);
    assert_int_equal(ahead(), 4); /* alone */
}

/* A step of a training is behind its first collective; but that may wait for what comes. */
static void little_is_submitted_behind_a_collective(void **state)
{
    (void)state;
    world.contended = world.collective = true;
    assert_int_equal(ahead(), 2);
    world.now += 5 * MS - 1;
    assert_false(submit());
    world.now += 1;
    assert_int_equal(ahead(), 100);
    end(NULL);
    begin(NULL);
    world.contended = world.collective = world.crowded = true;
    assert_int_equal(ahead(), 100); /* ranks of this process wait for each other */
    end(NULL);
    begin(NULL);
    world.collective = true;
    assert_int_equal(ahead(), 100); /* alone */
}

static unsigned submissions_to_the_next_mark(void)
{
    unsigned before = world.records, n = 0;
    while (world.records == before && n < 1000) {
        assert_true(submit());
        n++;
    }
    return n;
}

/* Marks cost: short work has few of them, and long work soon one each again. */
static void marks_follow_the_length_of_the_work(void **state)
{
    (void)state;
    static const unsigned while_short[] = {1, 2, 4, 8, 16, 32, 32};
    static const unsigned while_long[] = {32, 16, 8, 4, 2, 1, 1};
    world.contended = true; /* aims at 1 ms between marks */
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(submissions_to_the_next_mark(), while_short[i]);
        run(MS / 10);
        assert_false(gpw_gate_busy(&session));
    }
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(submissions_to_the_next_mark(), while_long[i]);
        run(50 * MS);
    }
    assert_int_equal(submissions_to_the_next_mark(), 1);
    run(MS); /* as it should be */
    assert_int_equal(submissions_to_the_next_mark(), 1);
}

/* Until no more is let in: marks under way then. */
static unsigned marks_ahead(void)
{
    while (submit())
        ;
    return world.records - world.passed;
}

/* So much later a look sees the oldest pass, and as many behind it. */
static void pass_after(uint64_t ns, unsigned marks)
{
    gpw_gate_poll(&session); /* who waits for room looks often */
    world.now += ns;
    gpw_gate_poll(&session);
    world.now += MS / 20;
    world.passed += marks;
    gpw_gate_poll(&session);
}

static void be_brief(void)
{
    for (unsigned i = 0; i < 2; i++) {
        marks_ahead();
        pass_after(0, 1);
    }
    assert_int_equal(marks_ahead(), 16);
}

/* Between its slices others of the tenant have the GPU; in each of them a process is to do all it can. */
static void much_brief_work_is_ahead_of_a_slice(void **state)
{
    (void)state;
    assert_int_equal(marks_ahead(), 4);
    pass_after(8 * MS, 1); /* its slice has begun */
    assert_int_equal(marks_ahead(), 4);
    pass_after(0, 1);
    assert_int_equal(marks_ahead(), 16);
    for (unsigned i = 0; i < 3; i++) {
        pass_after(8 * MS, 1);
        pass_after(0, 2);
        assert_int_equal(marks_ahead(), 16);
    }
    world.contended = true;
    world.passed = world.records - 3;
    gpw_gate_poll(&session);
    assert_int_equal(marks_ahead(), 3); /* others are waiting */
    world.passed++;
    gpw_gate_poll(&session);
    assert_int_equal(marks_ahead(), 2);
}

/* Who comes must not wait for more than that. */
static void little_long_work_is_ahead(void **state)
{
    (void)state;
    be_brief();
    pass_after(MS, 1);
    assert_int_equal(marks_ahead(), 16); /* this may have been somebody else's slice */
    for (unsigned under_way = 15; under_way >= 4; under_way--) {
        pass_after(MS, 1);
        assert_int_equal(marks_ahead(), under_way);
    }
    pass_after(MS, 1);
    assert_int_equal(marks_ahead(), 4);
}

/* Two that pass behind one another, and the first may have passed for long. */
static void what_is_seen_late_is_not_brief(void **state)
{
    (void)state;
    marks_ahead();
    for (unsigned i = 0; i < 2; i++) {
        world.now += i == 0 ? MS : MS / 20;
        world.passed++;
        gpw_gate_poll(&session);
        assert_int_equal(marks_ahead(), 4);
    }
}

/* Nobody looks often at what need not wait for room: that a batch was over says nothing of its work. */
static void what_is_seen_late_is_not_long(void **state)
{
    (void)state;
    be_brief();
    for (unsigned i = 0; i < 5; i++) {
        pass_after(8 * MS, world.records - world.passed);
        assert_false(gpw_gate_busy(&session));
        for (unsigned n = 0; n < 192; n++) /* the last is marked */
            assert_true(submit());
    }
    assert_int_equal(marks_ahead(), 16);
}

/* A kernel of a collective waits for another rank's, whose tenant may wait for this GPU. */
static void a_turn_does_not_wait_for_a_collective(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = world.collective = true;
    gpw_gate_poll(&session);
    world.now += 49 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    world.now += 2 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 1);
    assert_true(world.lost);
}

/* NCCL's thread puts it on its stream later than the message that asked for it. */
static void a_turn_waits_for_what_is_launched_later(void **state)
{
    (void)state;
    const CUstream stream = STREAM;
    assert_true(submit());
    int gate = gpw_gate_launching(&session, CONTEXT);
    run(0);
    run(0); /* nothing else is under way */
    assert_int_equal(world.idled, 0);
    unsigned before = world.records;
    gpw_gate_launched(&session, gate, CONTEXT, &stream);
    gpw_gate_poll(&session);
    assert_int_equal(world.records, before + 1);
    assert_int_equal(world.idled, 0);
    run(0);
    assert_int_equal(world.idled, 1);
}

static void what_never_comes_to_its_stream_is_not_waited_for(void **state)
{
    (void)state;
    assert_true(submit());
    int gate = gpw_gate_launching(&session, CONTEXT);
    run(0);
    gpw_gate_launched(&session, gate, CONTEXT, NULL);
    run(0);
    assert_int_equal(world.idled, 1);
}

/* NCCL waits for another rank before it launches anything; what it then does is of the next turn. */
static void a_turn_does_not_wait_long_for_a_launch(void **state)
{
    (void)state;
    const CUstream stream = STREAM;
    assert_true(submit());
    int gate = gpw_gate_launching(&session, CONTEXT);
    world.must_yield = world.collective = true;
    run(0);
    run(51 * MS);
    assert_int_equal(world.idled, 1);
    assert_true(world.lost);
    assert_int_equal(gpw_gate_launching(&session, CONTEXT), -1); /* that nobody let in */
    gpw_gate_launched(&session, gate, CONTEXT, &stream);
    assert_false(gpw_gate_busy(&session));
    world.must_yield = false;
    assert_true(submit());
    unsigned before = world.passed = world.records - 1;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 1);
    finish_all();
    assert_true(world.passed > before);
    assert_int_equal(world.idled, 2);
}

/* Another rank waits on its GPU for a collective that this one has not begun. */
static void a_turn_that_ends_catches_up_with_other_ranks(void **state)
{
    (void)state;
    assert_true(submit());
    world.others_collectives = 1;
    world.must_yield = world.contended = world.closed = true;
    run(0);
    assert_int_equal(world.idled, 0); /* its work is over, and more is to come */
    assert_true(submit());
    gpw_gate_collective(&session, 1, 1);
    assert_false(submit());
    assert_int_equal(world.idled, 0);
    run(0);
    assert_int_equal(world.idled, 1);
    assert_int_equal(world.entered, 1);
}

/* Nor longer for a tenant that says so. */
static void a_turn_that_ends_catches_up_for_a_moment_only(void **state)
{
    (void)state;
    assert_true(submit());
    world.others_collectives = 1000000;
    world.must_yield = world.contended = world.closed = true;
    gpw_gate_poll(&session);
    world.now += 4 * MS - 1;
    assert_true(submit());
    world.now += 1;
    assert_false(submit());
    finish_all();
    assert_int_equal(world.idled, 1);
}

/* The program has waited for it, and finds the stream idle whenever it asks. */
static void work_that_is_over_gets_no_mark(void **state)
{
    (void)state;
    assert_true(submit() && submit()); /* the first is marked at once */
    run(0);                            /* from now on each second one is */
    finish_all();
    unsigned before = world.records;
    assert_true(submit());
    assert_int_equal(world.records, before);
    world.over = true;
    gpw_gate_poll(&session);
    assert_int_equal(world.records, before);
    assert_false(gpw_gate_busy(&session));
}

/* The made-up clock stands: who waits for a host function of a client waits for ever. */
static void a_turn_does_not_wait_for_a_stream_that_is_blocked(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = world.stands = true;
    gpw_gate_poll(&session);
    world.now += 49 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    assert_false(submit());
    world.now += 2 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 1);
    assert_true(world.lost);
    assert_false(gpw_gate_busy(&session));
}

static void a_turn_that_ends_waits_for_its_work(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = true;
    world.now += 1000 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0); /* the GPU is at it */
    run(0);
    assert_int_equal(world.idled, 1);
    assert_false(world.lost);
}

/* What has to wait for the next turn asks for that while work of this one is under way, and once. */
static void the_next_turn_is_asked_for_before_this_one_is_over(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = true;
    assert_int_equal(world.asked, 0);
    for (int i = 0; i < 3; i++)
        assert_false(submit());
    assert_int_equal(world.asked, 1);
    assert_int_equal(world.idled, 0);
    run(0);
    assert_int_equal(world.idled, 1);
}

static void a_turn_begins_when_the_gpu_has_changed_over(void **state)
{
    (void)state;
    world.fresh = true;
    assert_true(submit());
    assert_int_equal(world.records, 2); /* in front of the work, and behind it */
    gpw_gate_poll(&session);
    assert_int_equal(world.started, 0);
    world.passed = 1;
    gpw_gate_poll(&session);
    assert_int_equal(world.started, 1);
    assert_int_equal(world.idled, 0);
}

/* fake_record says if one is. */
static void a_stream_that_captures_is_never_marked(void **state)
{
    (void)state;
    world.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    world.fresh = true;
    assert_true(submit());
    gpw_gate_poll(&session);
    assert_int_equal(world.records, 0);
    finish_all();
}

static void events_of_a_dead_context_are_forgotten(void **state)
{
    (void)state;
    assert_true(submit());
    gpw_gate_context_ended(&session, CONTEXT);
    unsigned given = world.given;
    finish_all();
    assert_int_equal(world.given, given);
}

static void without_a_board_the_gate_is_open(void **state)
{
    (void)state;
    struct gpw_session free_one = session;
    free_one.gates = NULL;
    world.closed = true;
    assert_true(gpw_gate_admit(&free_one, &work.h, &here));
    gpw_gate_passed(&free_one, &work.h, &here);
    gpw_gate_poll(&free_one);
    gpw_gate_wait(&free_one, 1000);
    gpw_gate_tick(&free_one);
    assert_false(gpw_gate_busy(&free_one));
    assert_int_equal(gpw_gate_patience(&free_one, 1234), 1234);
    assert_int_equal(world.entered, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_closed_gate_holds_work_and_nothing_else),
        TEST(work_that_is_over_gives_the_turn_back),
        TEST(work_that_is_over_gets_no_mark),
        TEST(little_is_submitted_ahead_while_others_wait),
        TEST(little_is_submitted_behind_a_collective),
        TEST(marks_follow_the_length_of_the_work),
        TEST(much_brief_work_is_ahead_of_a_slice),
        TEST(little_long_work_is_ahead),
        TEST(what_is_seen_late_is_not_brief),
        TEST(what_is_seen_late_is_not_long),
        TEST(a_turn_does_not_wait_for_a_collective),
        TEST(a_turn_waits_for_what_is_launched_later),
        TEST(what_never_comes_to_its_stream_is_not_waited_for),
        TEST(a_turn_does_not_wait_long_for_a_launch),
        TEST(a_turn_that_ends_catches_up_with_other_ranks),
        TEST(a_turn_that_ends_catches_up_for_a_moment_only),
        TEST(a_turn_does_not_wait_for_a_stream_that_is_blocked),
        TEST(a_turn_that_ends_waits_for_its_work),
        TEST(the_next_turn_is_asked_for_before_this_one_is_over),
        TEST(a_turn_begins_when_the_gpu_has_changed_over),
        TEST(a_stream_that_captures_is_never_marked),
        TEST(events_of_a_dead_context_are_forgotten),
        TEST(without_a_board_the_gate_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
