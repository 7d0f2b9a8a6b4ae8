/*
 * What programs of two processes with one GPU share. The second process is made before the first
 * has CUDA, and begins anew, as CUDA wants it.
 */
#ifndef E2E_PAIR_H
#define E2E_PAIR_H

#include "driver.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 1024u

/* --- what the two say to each other ------------------------------------------------------- */

static inline void send_all(int to, const void *from, size_t bytes, int file)
{
    struct iovec iov = {(void *)(uintptr_t)from, bytes};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (file >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(c), &file, sizeof file);
    }
    REQUIRE(sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)bytes, "the other process has gone");
}

static inline int receive_all(int from, void *to, size_t bytes)
{
    int file = -1;
    struct iovec iov = {to, bytes};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    REQUIRE(recvmsg(from, &message, 0) == (ssize_t)bytes, "the other process has gone");
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&file, CMSG_DATA(c), sizeof file);
    return file;
}

static inline void tell(int other)
{
    send_all(other, "!", 1, -1);
}

static inline void await(int other)
{
    char c;
    receive_all(other, &c, 1);
}

/* --- memory that both have ---------------------------------------------------------------- */

static inline void fill(CUdeviceptr at, unsigned value)
{
    CU(cuMemsetD32(at, value, WORDS));
    CU(cuCtxSynchronize());
}

static inline void expect(CUdeviceptr at, unsigned value, const char *what)
{
    unsigned words[WORDS];
    CU(cuMemcpyDtoH(words, at, sizeof words));
    EXPECT(words[0] == value && words[WORDS - 1] == value, "%s holds %#x and %#x, expected %#x",
           what, words[0], words[WORDS - 1], value);
}

/* --- the two processes ---------------------------------------------------------------------- */

static inline int pair_second(int other, void (*second)(int other), const char *name)
{
    driver_start();
    second(other);
    driver_stop();
    return check_failures ? finish(name) : 0;
}

static inline void pair_first(int other, void (*first)(int other))
{
    int status;
    driver_start();
    first(other);
    REQUIRE(wait(&status) > 0, "the second process is lost");
    EXPECT(status == 0, "the second process ended with %d", status);
    driver_stop();
}

static inline int pair_run(int argc, char **argv, void (*first)(int other),
                           void (*second)(int other), const char *name)
{
    int pair[2];
    char number[16];
    if (argc == 2)
        return pair_second(atoi(argv[1]), second, name);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "there is no socket pair");
    snprintf(number, sizeof number, "%d", pair[1]);
    if (fork() == 0) {
        close(pair[0]);
        execl("/proc/self/exe", argv[0], number, NULL);
        _exit(127);
    }
    close(pair[1]);
    pair_first(pair[0], first);
    return finish(name);
}

#endif
