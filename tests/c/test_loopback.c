/* Who holds a lease's network connects what is of it, to its loopback, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "loopback.h"

static int door;
static bool over;
static pthread_t thread;

static void *serve(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        gp_loopback_serve(__atomic_load_n(&door, __ATOMIC_ACQUIRE));
        usleep(1000);
    }
    return NULL;
}

static int begin(void **state)
{
    (void)state;
    door = gp_loopback_open();
    __atomic_store_n(&over, false, __ATOMIC_RELEASE);
    return door < 0 || pthread_create(&thread, NULL, serve, NULL) != 0;
}

static int end(void **state)
{
    (void)state;
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    close(door);
    return 0;
}

static struct sockaddr_in listening(int *listener)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(*listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(*listener, 4), 0);
    assert_int_equal(getsockname(*listener, (struct sockaddr *)&a, &size), 0);
    return a;
}

/* 0 or an errno, of a new socket. */
static int tried(int family, int type, const void *address, socklen_t size)
{
    int fd = socket(family, type, 0);
    assert_true(fd >= 0);
    int error = gp_loopback_connect(fd, address, size) == 0 ? 0 : errno;
    close(fd);
    return error;
}

static void a_stream_is_connected(void **state)
{
    (void)state;
    int listener;
    struct sockaddr_in a = listening(&listener);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(gp_loopback_connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int other = accept(listener, NULL, NULL);
    char byte = 0;
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(read(other, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK); /* as it was */
    close(other);
    close(fd);
    close(listener);
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &a, sizeof a), ECONNREFUSED);
}

static void one_that_does_not_wait(void **state)
{
    (void)state;
    int listener;
    struct sockaddr_in a = listening(&listener);
    int error = tried(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, &a, sizeof a);
    assert_true(error == 0 || error == EINPROGRESS);
    close(listener);
}

static void nothing_else_is(void **state)
{
    (void)state;
    int listener;
    struct sockaddr_in a = listening(&listener), far = a;
    far.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1 */
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &far, sizeof far), EPERM);
    assert_int_equal(tried(AF_INET, SOCK_DGRAM, &a, sizeof a), EPERM);
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &a, sizeof a - 9), EPERM);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = a.sin_port};
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &six, sizeof six), EPERM);
    struct sockaddr none = {.sa_family = AF_UNSPEC}; /* would let go of a connection */
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &none, sizeof none), EPERM);
    struct sockaddr_un file = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    assert_int_equal(tried(AF_UNIX, SOCK_STREAM, &file, sizeof file), EPERM);
    assert_int_equal(tried(AF_UNIX, SOCK_DGRAM, &file, sizeof(sa_family_t)), EPERM);
    close(listener);
}

static void send_to_door(int count, const int *fds, const void *bytes, size_t size)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0gpupool-loopback"};
    union {
        char bytes[CMSG_SPACE(8 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr m = {.msg_name = &name,
                       .msg_namelen = offsetof(struct sockaddr_un, sun_path) + 17,
                       .msg_iov = &part,
                       .msg_iovlen = 1};
    if (count) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN((size_t)count * sizeof(int)),
                                              .cmsg_level = SOL_SOCKET,
                                              .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, (size_t)count * sizeof(int));
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(sendmsg(fd, &m, 0), size);
    close(fd);
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Whatever is sent there, it goes on, and keeps nothing of it. */
static void what_makes_no_sense_harms_nobody(void **state)
{
    (void)state;
    int listener, pipes[2], many[8];
    struct sockaddr_in a = listening(&listener);
    assert_int_equal(pipe(pipes), 0);
    for (int i = 0; i < 8; i++)
        many[i] = pipes[1];
    int before = descriptors();
    send_to_door(0, NULL, &a, sizeof a);
    send_to_door(1, pipes, &a, sizeof a);
    send_to_door(2, pipes, &a, sizeof a);
    send_to_door(8, many, &a, sizeof a);
    send_to_door(2, many, "", 0);
    int blocking[2] = {socket(AF_INET, SOCK_STREAM, 0), pipes[1]};
    send_to_door(2, blocking, &a, sizeof a);
    char more[300] = {AF_INET};
    send_to_door(2, many, more, sizeof more);
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &a, sizeof a), 0);
    close(blocking[0]);
    /* The last one's are closed behind its answer. */
    for (int ms = 0; descriptors() != before && ms < 5000; ms++)
        usleep(1000);
    assert_int_equal(descriptors(), before);
    close(pipes[0]);
    close(pipes[1]);
    close(listener);
}

/* As a worker's connection to its client is one. */
static void a_socket_of_another_network_is_left_alone(void **state)
{
    (void)state;
    int listener, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (unshare(CLONE_NEWNET) != 0) { /* of this thread, which is of no use behind it */
        close(fd);
        skip();
    }
    int own = gp_loopback_open(), there = door;
    __atomic_store_n(&door, own, __ATOMIC_RELEASE);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(gp_loopback_connect(fd, (struct sockaddr *)&a, sizeof a), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(gp_loopback_connect(listener, (struct sockaddr *)&a, sizeof a), -1);
    assert_int_not_equal(errno, EPERM); /* its loopback is down, but it was tried */
    __atomic_store_n(&door, there, __ATOMIC_RELEASE);
    close(own);
    close(listener);
    close(fd);
}

static void without_anybody_who_serves(void **state)
{
    (void)state;
    int listener;
    struct sockaddr_in a = listening(&listener);
    assert_int_equal(tried(AF_INET, SOCK_STREAM, &a, sizeof a), EPERM);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_anybody_who_serves),
        cmocka_unit_test_setup_teardown(a_stream_is_connected, begin, end),
        cmocka_unit_test_setup_teardown(one_that_does_not_wait, begin, end),
        cmocka_unit_test_setup_teardown(nothing_else_is, begin, end),
        cmocka_unit_test_setup_teardown(what_makes_no_sense_harms_nobody, begin, end),
        cmocka_unit_test_setup_teardown(a_socket_of_another_network_is_left_alone, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
