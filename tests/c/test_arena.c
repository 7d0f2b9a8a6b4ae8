/* The memory for copies that both sides map: pinned where it is used, and nowhere twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "memory_internal.h"

#define PIECE ((uint64_t)GP_CHUNK_MAX)
#define PART (8 * PIECE)
#define BASE ((char *)(uintptr_t)0x700000000000)

static struct gpw_memory memory;
static uint64_t pinned[80][2]; /* where, and how much */
static unsigned count;
static CUresult refuses;

static CUresult pin(void *at, size_t bytes, unsigned flags)
{
    assert_int_equal(flags, CU_MEMHOSTREGISTER_PORTABLE);
    assert_true(count < 80);
    pinned[count][0] = (uint64_t)((char *)at - BASE);
    pinned[count++][1] = bytes;
    return refuses;
}

static CUresult exchange(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {.cuMemHostRegister_v2 = pin,
                                   .cuThreadExchangeStreamCaptureMode = exchange};
static struct gpw_session session = {.driver = &driver, .memory = &memory};

static void begin(uint64_t size)
{
    memset(&memory, 0, sizeof memory);
    memory.arena = (struct gp_share){.addr = BASE, .size = (size_t)size};
    memory.arena_open = true;
    count = 0;
    refuses = CUDA_SUCCESS;
}

static void used(uint64_t offset, uint64_t bytes, unsigned parts)
{
    unsigned before = count;
    assert_ptr_equal(gpw_arena_at(&session, offset, bytes), BASE + offset);
    assert_int_equal(count - before, parts);
}

static void what_is_used_is_pinned_once(void **state)
{
    (void)state;
    begin(48 * PIECE);
    used(47 * PIECE, PIECE, 1);
    assert_int_equal(pinned[0][0], 5 * PART);
    assert_int_equal(pinned[0][1], PART);
    used(46 * PIECE, PIECE, 0);
    used(40 * PIECE, 1, 0);
    used(39 * PIECE, PIECE, 1);
    used(0, PIECE, 1);
    used(2 * PART - 1, 2, 2); /* the end of one and the beginning of the next */
    used(0, 48 * PIECE, 1);
    used(0, 48 * PIECE, 0);
    uint64_t all = 0;
    for (unsigned i = 0; i < count; i++)
        all += pinned[i][1];
    assert_int_equal(all, 48 * PIECE);
}

static void the_last_part_may_be_short(void **state)
{
    (void)state;
    begin(PART + 4096);
    used(PART, 4096, 1);
    assert_int_equal(pinned[0][0], PART);
    assert_int_equal(pinned[0][1], 4096);
    used(PART + 4096, 0, 0); /* nothing, at its end */
    begin(4096);
    used(0, 1, 1);
    assert_int_equal(pinned[0][1], 4096);
}

/* As large as a client that lies may have it. */
static void there_are_never_more_than_64(void **state)
{
    (void)state;
    const uint64_t sizes[] = {64 * PART - 1, 64 * PART, 64 * PART + 1, 1000 * PART + 77};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        begin(sizes[i]);
        assert_ptr_equal(gpw_arena_at(&session, 0, sizes[i]), BASE);
        uint64_t all = 0;
        for (unsigned n = 0; n < count; n++)
            all += pinned[n][1];
        assert_true(count <= 64);
        assert_int_equal(all, sizes[i]);
        used(sizes[i] - 1, 1, 0);
    }
}

static void what_is_outside_is_nowhere(void **state)
{
    (void)state;
    begin(PART);
    assert_null(gpw_arena_at(&session, PART, 1));
    assert_null(gpw_arena_at(&session, PART + 1, 0));
    assert_null(gpw_arena_at(&session, 1, UINT64_MAX));
    assert_null(gpw_arena_at(&session, UINT64_MAX, 2));
    assert_int_equal(count, 0);
    memory.arena_open = false;
    assert_null(gpw_arena_at(&session, 0, 1));
}

/* It is used all the same, and the driver not asked again. */
static void what_cannot_be_pinned_is_asked_once(void **state)
{
    (void)state;
    begin(2 * PART);
    refuses = CUDA_ERROR_OUT_OF_MEMORY;
    used(0, 1, 1);
    used(0, 1, 0);
    used(PART, 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_used_is_pinned_once),
        cmocka_unit_test(the_last_part_may_be_short),
        cmocka_unit_test(there_are_never_more_than_64),
        cmocka_unit_test(what_is_outside_is_nowhere),
        cmocka_unit_test(what_cannot_be_pinned_is_asked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
