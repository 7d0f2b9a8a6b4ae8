/* A build without the private tables knows no UUID. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include "private_tables.h"

static void no_table_is_known(void **state)
{
    (void)state;
    static const unsigned char runtime[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                              0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    const struct gpc_private_host host = {0};
    const void *table = &table;
    assert_int_equal(gpc_private_table(&table, runtime, &host), CUDA_ERROR_INVALID_VALUE);
    assert_null(table);
    assert_int_equal(gpc_private_table(NULL, runtime, &host), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpc_private_counts(NULL, 0), 0);
    gpc_storage_context_ended(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_table_is_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
