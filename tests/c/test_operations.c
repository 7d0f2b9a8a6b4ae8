/* What two releases have in common: their protocols and operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gp_ids.h"
#include "operations.h"

static uint32_t theirs[GP_OPERATIONS_MAX + 1];

static uint32_t same(void)
{
    memcpy(theirs, gp_operations, sizeof gp_operations);
    return GP_OPERATIONS;
}

static uint32_t place_of(uint16_t op)
{
    uint32_t i = 0;
    while (gp_operations[i] >> 16 != op)
        i++;
    return i;
}

/* Leave one out. */
static uint32_t without(uint16_t op)
{
    uint32_t count = same(), at = place_of(op);
    memmove(theirs + at, theirs + at + 1, (count - at - 1) * sizeof theirs[0]);
    return count - 1;
}

static void the_same_release(void **state)
{
    (void)state;
    struct gp_shared shared;
    assert_true(gp_shared_read(&shared, theirs, same()));
    assert_false(shared.partial);
    assert_null(gp_shared_lacks(&shared, gp_core_requests));
    assert_null(gp_shared_lacks(&shared, gp_core_notifies));
    assert_true(gp_core_requests[0] && gp_core_notifies[0]);
}

static void one_is_missing(void **state)
{
    (void)state;
    struct gp_shared shared;
    assert_true(gp_shared_read(&shared, theirs, without(GP_OP_gp_fence)));
    assert_true(shared.partial);
    for (uint32_t i = 0; i < GP_OPERATIONS; i++) {
        uint16_t op = (uint16_t)(gp_operations[i] >> 16);
        assert_int_equal(gp_shared_has(&shared, op), op != GP_OP_gp_fence);
    }
    assert_null(gp_shared_lacks(&shared, gp_core_requests));
    assert_true(gp_shared_read(&shared, theirs, without(GP_OP_gp_launch)));
    assert_string_equal(gp_shared_lacks(&shared, gp_core_requests), "gp_launch");
    assert_true(gp_shared_read(&shared, theirs, without(GP_OP_gp_async_error)));
    assert_string_equal(gp_shared_lacks(&shared, gp_core_notifies), "gp_async_error");
}

static void another_form(void **state)
{
    (void)state;
    struct gp_shared shared;
    uint32_t count = same();
    theirs[place_of(GP_OP_gp_fence)] ^= 1;
    assert_true(gp_shared_read(&shared, theirs, count));
    assert_false(gp_shared_has(&shared, GP_OP_gp_fence));
    assert_true(gp_shared_has(&shared, GP_OP_gp_launch));
}

static void more_than_we_know(void **state)
{
    (void)state;
    struct gp_shared shared;
    uint32_t count = same();
    theirs[count] = theirs[count - 1] + (1u << 16);
    theirs[count + 1] = 0xffff0000u;
    assert_true(gp_shared_read(&shared, theirs, count + 2));
    assert_false(shared.partial);
    assert_true(gp_shared_read(&shared, theirs + count, 2)); /* none of ours */
    assert_false(gp_shared_has(&shared, GP_OP_gp_hello));
    assert_false(gp_shared_has(&shared, UINT16_MAX));
}

static void malformed_lists(void **state)
{
    (void)state;
    struct gp_shared shared;
    uint32_t count = same();
    assert_false(gp_shared_read(&shared, theirs, GP_OPERATIONS_MAX + 1));
    theirs[1] = theirs[0];
    assert_false(gp_shared_read(&shared, theirs, count));
    same();
    theirs[1] = theirs[0] + 1; /* the same number in two forms */
    assert_false(gp_shared_read(&shared, theirs, count));
    same();
    theirs[count - 1] = 1;
    assert_false(gp_shared_read(&shared, theirs, count));
    assert_true(gp_shared_read(&shared, NULL, 0)); /* has nothing, and is not malformed */
    assert_non_null(gp_shared_lacks(&shared, gp_core_requests));
}

static void protocols(void **state)
{
    (void)state;
    const uint32_t newest = GP_WIRE_VERSION, oldest = GP_WIRE_OLDEST;
    assert_int_equal(gp_wire_agree(newest, oldest), newest);
    assert_int_equal(gp_wire_agree(newest + 5, oldest), newest);
    assert_int_equal(gp_wire_agree(newest + 5, newest), newest);
    assert_int_equal(gp_wire_agree(newest + 5, newest + 1), 0);
    assert_int_equal(gp_wire_agree(oldest, 0), oldest);
    assert_int_equal(gp_wire_agree(oldest - 1, 0), 0);
    assert_int_equal(gp_wire_agree(newest, newest + 1), 0); /* no range */
    assert_int_equal(gp_wire_agree(UINT32_MAX, UINT32_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_release), cmocka_unit_test(one_is_missing),
        cmocka_unit_test(another_form),     cmocka_unit_test(more_than_we_know),
        cmocka_unit_test(malformed_lists),  cmocka_unit_test(protocols),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
