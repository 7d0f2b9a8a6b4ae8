/* Connecting within a time, while signals come all the time. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/dial.h"
#include "transport/support.h"

#define ENOUGH_MS 60000
#define RINGS 20

static _Atomic unsigned rings;

static void ring(int signal)
{
    (void)signal;
    rings++;
}

/* Every ms, and no call is restarted for it. */
static void timer_set(int us)
{
    struct sigaction action = {.sa_handler = ring};
    struct itimerval often = {.it_interval.tv_usec = us, .it_value.tv_usec = us};
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
}

/* A listener whose queue is full answers when there is room again. */
struct full {
    int listener, first;
    struct sockaddr_in address;
};

static void full_open(struct full *f)
{
    socklen_t size = sizeof f->address;
    f->address = (struct sockaddr_in){.sin_family = AF_INET};
    f->address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->listener = socket(AF_INET, SOCK_STREAM, 0);
    f->first = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(f->listener, (void *)&f->address, size), 0);
    assert_int_equal(listen(f->listener, 0), 0);
    assert_int_equal(getsockname(f->listener, (void *)&f->address, &size), 0);
    assert_int_equal(connect(f->first, (void *)&f->address, size), 0);
    /* The queue is full when the last word of the handshake is there, which connect sends. */
    struct pollfd taken = {.fd = f->listener, .events = POLLIN};
    assert_int_equal(poll(&taken, 1, ENOUGH_MS), 1);
}

static void full_close(struct full *f)
{
    close(f->first);
    close(f->listener);
}

static int connect_to(const struct full *f, int timeout_ms)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int rc = gp_connect_within(fd, (const void *)&f->address, sizeof f->address, timeout_ms);
    close(fd);
    return rc;
}

static void *room_main(void *arg)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (rings < RINGS)
        usleep(1000);
    int fd = accept(((struct full *)arg)->listener, NULL, NULL);
    if (fd >= 0)
        close(fd);
    return NULL;
}

static void test_an_answer_among_signals(void **state)
{
    (void)state;
    struct full f;
    pthread_t thread;
    full_open(&f);
    rings = 0;
    timer_set(1000);
    assert_int_equal(pthread_create(&thread, NULL, room_main, &f), 0);
    int rc = connect_to(&f, ENOUGH_MS);
    timer_set(0);
    assert_int_equal(rc, 0);
    assert_true(rings >= RINGS);
    pthread_join(thread, NULL);
    full_close(&f);
}

/* They do not lengthen the time either. */
static void test_no_answer_among_signals(void **state)
{
    (void)state;
    struct full f;
    full_open(&f);
    rings = 0;
    timer_set(1000);
    int rc = connect_to(&f, 300);
    timer_set(0);
    assert_int_equal(rc, -ETIMEDOUT);
    assert_true(rings > 1);
    full_close(&f);
}

/* Nobody has to take a connection for as long as who has taken it may be silent. */
static void test_reaching_is_a_part_of_the_time(void **state)
{
    struct gp_error err = {.text = ""};
    (void)state;
    assert_int_equal(gp_reach_ms(gp_deadline_us((int64_t)ENOUGH_MS * 1000)), GP_REACH_MS);
    assert_int_equal(gp_reach_ms(gp_deadline_us(-1)), GP_REACH_MS);
    assert_in_range(gp_reach_ms(gp_deadline_us(5000000)), 0, 5000);
    assert_int_equal(gp_reach_ms(gp_deadline_us(0)), 0);
    gp_dial_explain("tcp://h:1", -ETIMEDOUT, ENOUGH_MS, false, &err);
    assert_non_null(strstr(err.text, "does not answer within 10000 ms: check the address"));
    gp_dial_explain("tcp://h:1", -ETIMEDOUT, 300, false, &err);
    assert_non_null(strstr(err.text, "within 300 ms: check the address"));
    gp_dial_explain("tcp://h:1", -ETIMEDOUT, ENOUGH_MS, true, &err);
    assert_non_null(strstr(err.text, "within 60000 ms: somebody accepts the connection"));
}

/* --- ports ---------------------------------------------------------------- */

static void test_ports_are_read(void **state)
{
    static const char *const wrong[] = {"",      "-",    "1-",      "-1",    "0-1",        "2-1",
                                        "1-2-3", "1-x",  "1-65536", "65536", "1-99999999", "*-*",
                                        " 1-2",  "1- 2", "+1",      "1-*"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(gp_port_ok(wrong[i], strlen(wrong[i]), true));
    assert_true(gp_port_ok("1-65535", 7, true));
    assert_true(gp_port_ok("7-7", 3, true));
    assert_true(gp_port_ok("*", 1, true));
    assert_false(gp_port_ok("*", 1, false));
    assert_false(gp_port_ok("1-2", 3, false));

    struct gp_ports ports = {0};
    assert_int_equal(gp_ports_of("tcp://h:40000-40009", &ports), 0);
    assert_int_equal(ports.first, 40000);
    assert_int_equal(ports.count, 10);
    assert_int_equal(gp_ports_of("tcp://[::1]:1-65535", &ports), 0);
    assert_int_equal(ports.count, 65535);
    assert_int_equal(gp_ports_of("tcp://h:*", &ports), 0);
    assert_int_equal(ports.first, 0);
    assert_int_equal(ports.count, 1);
    assert_int_equal(gp_ports_of("tcp://h:2-1", &ports), -EINVAL);
    assert_int_equal(gp_ports_of("tcp", &ports), -EINVAL);
}

/* Which ports were tried, and what trying says. */
struct tried {
    unsigned char often[10];
    uint16_t free; /* 0: none is */
    int otherwise;
};

static int try_port(void *ctx, uint16_t port)
{
    struct tried *t = ctx;
    assert_in_range(port, 65526, 65535);
    t->often[port - 65526]++;
    return port == t->free ? 77 : t->otherwise;
}

static void test_ports_are_tried_once_each(void **state)
{
    static const struct gp_ports last_ten = {.first = 65526, .count = 10};
    struct tried none = {.otherwise = -EADDRINUSE}, denied = {.otherwise = -EACCES};
    (void)state;
    assert_int_equal(gp_ports_try(&last_ten, try_port, &none), -EADDRINUSE);
    for (int i = 0; i < 10; i++)
        assert_int_equal(none.often[i], 1);
    for (uint16_t port = 65526; port >= 65526; port++) { /* to the last, and around */
        struct tried one = {.free = port, .otherwise = -EADDRINUSE};
        assert_int_equal(gp_ports_try(&last_ten, try_port, &one), 77);
        assert_int_equal(one.often[port - 65526], 1);
    }
    assert_int_equal(gp_ports_try(&last_ten, try_port, &denied), -EACCES);
    int count = 0;
    for (int i = 0; i < 10; i++)
        count += denied.often[i];
    assert_int_equal(count, 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ports_are_read),
        cmocka_unit_test(test_ports_are_tried_once_each),
        cmocka_unit_test(test_reaching_is_a_part_of_the_time),
        cmocka_unit_test(test_an_answer_among_signals),
        cmocka_unit_test(test_no_answer_among_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
