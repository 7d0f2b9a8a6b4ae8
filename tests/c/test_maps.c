/* What is mapped here, and what is wrong with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maps.h"

#define PIECE 65536u

static char *pages;

static const char *must_be_writable(const struct gpc_mapping *m)
{
    return m->rights[1] == 'w' ? NULL : "it cannot be written";
}

/* Of so many bytes behind the first so many. */
static const char *wrong(size_t from, size_t bytes)
{
    const char *why;
    uint64_t begin = (uint64_t)(uintptr_t)pages + from;
    return gpc_maps_check(begin, begin + bytes, must_be_writable, &why) ? why : "it is not known";
}

/* Three pieces: one to read and write, one to read, and none. */
static int set_up(void **state)
{
    (void)state;
    pages = mmap(NULL, 3 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED || mprotect(pages + PIECE, PIECE, PROT_READ) != 0 ||
           munmap(pages + 2 * PIECE, PIECE) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    return munmap(pages, 2 * PIECE);
}

static void every_mapping_is_judged(void **state)
{
    (void)state;
    assert_null(wrong(0, PIECE));
    assert_null(wrong(100, 8));
    assert_string_equal(wrong(PIECE - 1, 2), "it cannot be written");
    assert_string_equal(wrong(2 * PIECE, 1), "part of it is not mapped");
    assert_int_equal(mprotect(pages + PIECE, PIECE, PROT_READ | PROT_WRITE), 0);
    assert_null(wrong(0, 2 * PIECE));
    assert_string_equal(wrong(PIECE, PIECE + 1), "part of it is not mapped");
}

/* Once the first thread has ended, and what it had with it. */
static void *ask_alone(void *arg)
{
    (void)arg;
    for (int first = 0; first != EOF; usleep(1000)) {
        FILE *maps = fopen("/proc/self/maps", "re");
        if (!maps)
            _exit(2);
        first = fgetc(maps);
        fclose(maps);
    }
    _exit(wrong(0, PIECE) ? 1 : 0);
}

/* A program may go on in another thread. */
static void the_first_thread_may_have_ended(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pthread_t other;
        if (pthread_create(&other, NULL, ask_alone, NULL) != 0)
            _exit(2);
        pthread_exit(NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_mapping_is_judged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_first_thread_may_have_ended, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
