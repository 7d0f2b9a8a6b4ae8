/* Memory that another thread writes meanwhile, looked at. It is mapped twice, as host and GPU have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "look.h"

#define BYTES 16384u
#define PAIRS (BYTES / sizeof(uint64_t))
#define LOOKS 3000

/* Two blocks; `data` is as long as both. */
static struct {
    uint64_t *there, *here;
    struct gp_look look;
    uint64_t data[2 * PAIRS];
} memory;

/* What the other thread counts up, in this order, until it is told to stop. */
static struct {
    unsigned count;
    size_t pair[2];
    unsigned pace; /* turns, at most, between two words */
    bool over;
} writer;

static int set_up(void **state)
{
    (void)state;
    int fd = memfd_create("look", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 2 * BYTES), 0);
    memory.there = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory.here = mmap(NULL, 2 * BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    memory.look = (struct gp_look){
        .count = 2, .at = {memory.here, memory.here + PAIRS}, .sizes = {BYTES, BYTES}};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    munmap(memory.there, 2 * BYTES);
    munmap(memory.here, 2 * BYTES);
    return 0;
}

static void *counts(void *arg)
{
    for (uint64_t n = 1; !__atomic_load_n(&writer.over, __ATOMIC_RELAXED); n++)
        for (unsigned i = 0; i < writer.count; i++) {
            __atomic_store_n(&memory.there[writer.pair[i]], n, __ATOMIC_RELEASE);
            for (volatile uint64_t turns = writer.pace ? n * 7919 % writer.pace : 0; turns; turns--)
                ;
        }
    return arg;
}

static bool look(void)
{
    return gp_look_take(&memory.look, (char *)memory.data);
}

/* How many looks were of one moment; `check` sees each. */
static unsigned look_often(unsigned count, size_t first, size_t second, void (*check)(bool still))
{
    pthread_t thread;
    unsigned still = 0;
    writer.count = count;
    writer.pair[0] = first;
    writer.pair[1] = second;
    writer.over = false;
    assert_int_equal(pthread_create(&thread, NULL, counts, NULL), 0);
    for (unsigned i = 0; i < LOOKS; i++) {
        bool was_still = look();
        still += was_still;
        check(was_still);
    }
    __atomic_store_n(&writer.over, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    return still;
}

static void what_nobody_writes(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * PAIRS; i++)
        memory.there[i] = i * i;
    assert_true(look());
    assert_memory_equal(memory.data, memory.there, 2 * BYTES);
    memory.look.count = 0;
    assert_true(look());
}

static void one_moves(bool still)
{
    static uint64_t before;
    assert_true(still);
    assert_true(memory.data[PAIRS + 7] >= before || before == 0);
    before = memory.data[PAIRS + 7];
}

static void one_pair_may_move(void **state)
{
    (void)state;
    assert_int_equal(look_often(1, PAIRS + 7, 0, one_moves), LOOKS);
}

static size_t first, second;

static void in_order(bool still)
{
    bool behind = first / PAIRS == second / PAIRS && second > first;
    if (still || behind)
        assert_true(memory.data[first] >= memory.data[second]);
}

/* Between blocks, and in one of them both ways. */
static void nothing_comes_before_what_was_written_first(void **state)
{
    (void)state;
    const size_t pairs[][2] = {{3, PAIRS + 9}, {PAIRS + 9, 3}, {5, 2000}, {2000, 5}, {40, 41}};
    for (unsigned i = 0; i < 2 * sizeof pairs / sizeof pairs[0]; i++) {
        first = pairs[i / 2][0];
        second = pairs[i / 2][1];
        writer.pace = i % 2 ? 4000 : 0; /* or about as long as a look takes */
        memset(memory.there, 0, 2 * BYTES);
        look_often(2, first, second, in_order);
    }
    writer.pace = 0;
}

static void a_word_makes_another_digest(void **state)
{
    (void)state;
    uint32_t *words = (uint32_t *)(void *)memory.data;
    memset(words, 0, BYTES);
    uint64_t zeros = gp_look_digest(words, BYTES);
    for (size_t i = 0; i < BYTES / sizeof *words; i += 13) {
        words[i] = 1 + (uint32_t)i;
        assert_int_not_equal(gp_look_digest(words, BYTES), zeros);
        words[i] = 0;
    }
    assert_int_equal(gp_look_digest(words, BYTES), zeros);
    assert_int_not_equal(gp_look_digest(words, BYTES / 2), zeros);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(what_nobody_writes),
        CASE(one_pair_may_move),
        CASE(nothing_comes_before_what_was_written_first),
        CASE(a_word_makes_another_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
