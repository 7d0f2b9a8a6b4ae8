/* Connecting within a time, while signals come all the time. */
#include <errno.h>
#include <netinet/in.h>
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

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_among_signals),
        cmocka_unit_test(test_no_answer_among_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
