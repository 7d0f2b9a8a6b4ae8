/* A worker that listens at a socket which somebody else has opened. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport_raw.h"
#include "transport_suite_ends.h"

/* One that listens, and its port. */
static int handed_make(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (void *)&a, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (void *)&a, &size), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void test_a_handed_socket_serves(void **state)
{
    (void)state;
    struct ends e = {0};
    struct gp_error err = {.text = ""};
    char url[128];
    int port, fd = handed_make(&port);
    snprintf(url, sizeof url, "tls://127.0.0.1:*?fd=%d", fd);
    if (tp->listen(url, &e.listener, &err) != 0)
        fail_msg("%s", err.text);
    snprintf(url, sizeof url, "tls://127.0.0.1:%d?door=", port);
    assert_memory_equal(tp->listener_url(e.listener), url, strlen(url));
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ends_join(&e);
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    for (int i = 0; i < PATIENCE_MS && fcntl(fd, F_GETFD) != -1; i++)
        usleep(1000);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* shut behind the client and its lanes */
    ends_close(&e);
}

/* It stays its owner's, whatever it is. */
static void expect_not_handed(const char *text, int fd)
{
    struct gp_listener *l = NULL;
    struct gp_error err = {.text = ""};
    char url[128];
    snprintf(url, sizeof url, "plain://127.0.0.1:*?fd=%s", text);
    assert_true(tp->listen(url, &l, &err) < 0);
    assert_null(l);
    expect_line(&err);
    if (fd >= 0)
        assert_int_equal(close(fd), 0);
}

static void expect_number_not_handed(int fd)
{
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    expect_not_handed(text, fd);
}

static void test_what_cannot_be_handed(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "x", "2", "-1", "7 ", "3x", "99999", "9999999999"};
    struct gp_channel *ch = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_not_handed(wrong[i], -1);
    expect_number_not_handed(socket(AF_INET, SOCK_STREAM, 0)); /* it does not listen */
    expect_number_not_handed(memfd_create("file", MFD_CLOEXEC));
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(local, (struct sockaddr *)&(sa_family_t){AF_UNIX}, sizeof(sa_family_t)),
                     0);
    assert_int_equal(listen(local, 1), 0);
    expect_number_not_handed(local);
    assert_int_equal(tp->connect("plain://127.0.0.1:1?fd=5", 100, &ch, NULL), -EINVAL);
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_handed_socket_serves),
        cmocka_unit_test(test_what_cannot_be_handed),
    };
    struct gp_error err = {.text = ""};
    suite = &own;
    tp = gp_transport_find("tls://", getenv("GPUPOOL_PLUGIN_DIR"), &err);
    if (!tp) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
