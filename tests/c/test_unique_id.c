/* Unique ids of NCCL's: sealed, opened, and taken for none when anything of them is another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "unique_id.h"

static const uint8_t key[GPW_PEER_KEY] = "a key of thirty-two bytes, or so";
static const uint8_t others[GPW_PEER_KEY] = "another key of thirty-two bytes.";

static ncclUniqueId id_make(void)
{
    ncclUniqueId id = {{0}};
    for (int i = 0; i < GPW_ID_BODY; i++)
        id.internal[i] = (char)(3 * i);
    return id;
}

static void a_sealed_id_can_be_opened(void **state)
{
    (void)state;
    ncclUniqueId id = id_make(), opened;
    uint8_t sealed[NCCL_UNIQUE_ID_BYTES];
    assert_true(gpw_unique_id_seal(key, &id, sealed));
    assert_memory_not_equal(sealed, id.internal, 32); /* its client cannot read it */
    assert_true(gpw_unique_id_open(key, sealed, &opened));
    assert_memory_equal(&opened, &id, sizeof id);
}

static void an_id_of_another_lease_is_none(void **state)
{
    (void)state;
    ncclUniqueId id = id_make(), opened;
    uint8_t sealed[NCCL_UNIQUE_ID_BYTES];
    assert_true(gpw_unique_id_seal(others, &id, sealed));
    assert_false(gpw_unique_id_open(key, sealed, &opened));
}

static void a_changed_byte_makes_it_none(void **state)
{
    (void)state;
    ncclUniqueId id = id_make(), opened;
    uint8_t sealed[NCCL_UNIQUE_ID_BYTES];
    assert_true(gpw_unique_id_seal(key, &id, sealed));
    for (unsigned i = 0; i < sizeof sealed; i++) {
        sealed[i] ^= 0x20;
        assert_false(gpw_unique_id_open(key, sealed, &opened));
        sealed[i] ^= 0x20;
    }
    assert_true(gpw_unique_id_open(key, sealed, &opened));
}

static void a_longer_id_is_not_cut_off(void **state)
{
    (void)state;
    ncclUniqueId id = id_make();
    uint8_t sealed[NCCL_UNIQUE_ID_BYTES];
    id.internal[GPW_ID_BODY] = 1;
    assert_false(gpw_unique_id_seal(key, &id, sealed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sealed_id_can_be_opened),
        cmocka_unit_test(an_id_of_another_lease_is_none),
        cmocka_unit_test(a_changed_byte_makes_it_none),
        cmocka_unit_test(a_longer_id_is_not_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
