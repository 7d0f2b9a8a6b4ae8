/* The control socket of a worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "accept_lacks.h"
#include "control.h"

/* It asked the kernel without end, and said nothing. */
static void a_server_waits_for_descriptors(void **state)
{
    (void)state;
    static struct gpw_control c; /* its thread has it until the process ends */
    static struct gpw_session s;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[256], said[4096];
    int log[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(log), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/gpupool-control-%d", (int)getpid());
    assert_int_equal(gpw_control_open(&c, address.sun_path, NULL, "s", &s), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    dup2(log[1], STDERR_FILENO);
    accept_lacks(true);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, "nonsense\n", 9, 0), 9);
    while (accept_calls() < 3)
        usleep(10000);
    int calls = accept_calls();
    accept_lacks(false);
    dup2(before, STDERR_FILENO);
    ssize_t n = recv(fd, answer, sizeof answer - 1, 0);
    assert_true(n > 0);
    answer[n] = '\0';
    assert_non_null(strstr(answer, "unknown command"));
    assert_in_range(calls, 1, 20);
    n = read(log[0], said, sizeof said);
    assert_true(n > 0 && memchr(said, '\n', (size_t)n) == said + n - 1);
    close(fd);
    gpw_control_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_waits_for_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
