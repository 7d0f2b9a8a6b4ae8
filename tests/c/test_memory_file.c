/* Files that are memory: which seals one has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <sys/mman.h>

#include "memory_file.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

static int sealed(unsigned flags, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd >= 0)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void all_seals_are_asked_for(void **state)
{
    (void)state;
    int whole = sealed(0, SEALS), part = sealed(0, F_SEAL_SHRINK);
    assert_true(gp_memory_file_sealed(whole, SEALS));
    assert_false(gp_memory_file_sealed(part, SEALS));
    close(whole);
    close(part);
}

/* As the kernel makes each where vm.memfd_noexec says so. */
static void another_seal_is_no_obstacle(void **state)
{
    (void)state;
    int fd = sealed(MFD_NOEXEC_SEAL, SEALS);
    if (fd < 0)
        skip(); /* Linux before 6.3 */
    assert_int_not_equal(fcntl(fd, F_GET_SEALS), SEALS);
    assert_true(gp_memory_file_sealed(fd, SEALS));
    close(fd);
}

static void what_is_no_such_file_has_none(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_false(gp_memory_file_sealed(ends[0], SEALS));
    assert_false(gp_memory_file_sealed(-1, SEALS));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_seals_are_asked_for),
        cmocka_unit_test(another_seal_is_no_obstacle),
        cmocka_unit_test(what_is_no_such_file_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
