/* Bytes that several threads copy: all of them, once, and nothing beside them, however many copy
 * at a time and wherever a thread is when it waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "movers.h"

#define PIECE ((size_t)64 << 10)
#define PIECES 80u /* more than there is room for at a time */
#define THREADS 6u
#define ROUNDS 40u
#define GUARD 64u

struct area {
    uint8_t before[GUARD], bytes[PIECE * PIECES], after[GUARD];
};

static void fill(uint8_t *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(seed + i * 7 + (i >> 12));
}

static bool guards_stand(const struct area *a, uint8_t value)
{
    for (unsigned i = 0; i < GUARD; i++)
        if (a->before[i] != value || a->after[i] != value)
            return false;
    return true;
}

/* All pieces at once, and then each in the order in which it began, or the other way round. */
static void *copy_all(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    struct area *from = malloc(sizeof *from), *to = malloc(sizeof *to);
    int begun[PIECES];
    bool good = from != NULL && to != NULL;
    for (unsigned round = 0; good && round < ROUNDS; round++) {
        memset(to, 0xee, sizeof *to);
        fill(from->bytes, sizeof from->bytes, seed + round);
        for (unsigned i = 0; i < PIECES; i++)
            begun[i] = gpc_move_begin(to->bytes + i * PIECE, from->bytes + i * PIECE, PIECE);
        for (unsigned i = 0; i < PIECES; i++) {
            unsigned which = round % 2 ? PIECES - 1 - i : i;
            gpc_move_finish(begun[which]);
            good = good &&
                   memcmp(to->bytes + which * PIECE, from->bytes + which * PIECE, PIECE) == 0;
            memset(from->bytes + which * PIECE, 0x11, PIECE); /* nobody reads it any more */
        }
        good = good && guards_stand(to, 0xee);
    }
    free(from);
    free(to);
    return good ? argument : NULL;
}

static void several_threads_copy_at_a_time(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i * 31;
        assert_int_equal(pthread_create(&threads[i], NULL, copy_all, &seeds[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *good;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_ptr_equal(good, &seeds[i]);
    }
}

static void an_odd_size_is_copied_whole(void **state)
{
    (void)state;
    uint8_t from[1001], to[1003];
    fill(from, sizeof from, 5);
    memset(to, 0xee, sizeof to);
    gpc_move_finish(gpc_move_begin(to + 1, from, sizeof from));
    assert_memory_equal(to + 1, from, sizeof from);
    assert_true(to[0] == 0xee && to[1002] == 0xee);
}

struct shared_work {
    unsigned next, done[PIECES];
};

static void work_on(void *argument)
{
    struct shared_work *w = argument;
    unsigned i;
    while ((i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < PIECES)
        w->done[i]++;
}

/* Begun more often than there is room for, and with copies between. */
static void work_is_done_once(void **state)
{
    (void)state;
    uint8_t from[1000], to[1000];
    fill(from, sizeof from, 9);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct shared_work w = {.next = 0};
        int begun[PIECES];
        for (unsigned i = 0; i < PIECES; i++)
            begun[i] = gpc_move_begin_work(work_on, &w);
        memset(to, 0, sizeof to);
        int copy = gpc_move_begin(to, from, sizeof from);
        for (unsigned i = 0; i < PIECES; i++)
            gpc_move_finish(begun[i]);
        gpc_move_finish(copy);
        assert_memory_equal(to, from, sizeof to);
        for (unsigned i = 0; i < PIECES; i++)
            assert_int_equal(w.done[i], 1);
    }
}

static void what_a_program_says_is_how_many(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    unsigned cores = (unsigned)CPU_COUNT(&set), most = cores - 1 < 3 ? cores - 1 : 3;
    static const struct {
        const char *said;
        unsigned wanted; /* at most; 3: as without it */
    } cases[] = {{"1", 0}, {"2", 1}, {"4", 3},  {"0", 3},  {"5", 3},
                 {"", 3},  {"x", 3}, {"-1", 3}, {"2x", 3}, {"18446744073709551617", 3}};
    unsetenv("GPUPOOL_COPY_THREADS");
    assert_int_equal(gpc_movers_allowed(), most);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("GPUPOOL_COPY_THREADS", cases[i].said, 1);
        assert_int_equal(gpc_movers_allowed(), cases[i].wanted < most ? cases[i].wanted : most);
    }
    unsetenv("GPUPOOL_COPY_THREADS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_threads_copy_at_a_time),
        cmocka_unit_test(an_odd_size_is_copied_whole),
        cmocka_unit_test(work_is_done_once),
        cmocka_unit_test(what_a_program_says_is_how_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
