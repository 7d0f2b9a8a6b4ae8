#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arbiter.h"
#include "arbiter_process.h"

void sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static int serve(int listener)
{
    struct gp_arbiter *a;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    if (gp_arbiter_new(listener, &a) != 0)
        return 1;
    while (!gp_arbiter_done(a))
        gp_arbiter_step(a, -1);
    gp_arbiter_free(a);
    return 0;
}

int arbiter_reach(const struct arbiter_process *a)
{
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    assert_int_equal(getsockname(a->listener, (struct sockaddr *)&address, &size), 0);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

unsigned arbiter_descriptors(const struct arbiter_process *a)
{
    char path[64];
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", a->pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

void arbiter_start(struct arbiter_process *a)
{
    a->pid = fork();
    assert_true(a->pid >= 0);
    if (a->pid == 0)
        _exit(serve(a->listener));
    a->fd = arbiter_reach(a);
}

int arbiter_begin(void **state)
{
    struct arbiter_process *a = calloc(1, sizeof *a);
    const struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_non_null(a);
    a->fds[0] = a->fds[1] = -1;
    a->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* the kernel finds a name */
    if (bind(a->listener, (const struct sockaddr *)&address, sizeof address.sun_family) != 0 ||
        listen(a->listener, 4) != 0)
        return -1;
    arbiter_start(a);
    *state = a;
    return arbiter_say(a, "gpu 2 20 90 1 1073741824") != 0 ||
           arbiter_say(a, "tenant a 67108864 1 500 1000 0") != 0 ||
           arbiter_say(a, "tenant b 67108864 2 500 1000 0") != 0;
}

int arbiter_end(void **state)
{
    struct arbiter_process *a = *state;
    int status = 0;
    close(a->fd);
    close(a->listener);
    waitpid(a->pid, &status, 0); /* it has no server any more, and no worker */
    free(a);
    return status;
}

int arbiter_say_with(struct arbiter_process *a, const char *line, const int fds[2])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {(char *)(uintptr_t)line, strlen(line)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(c), fds, 2 * sizeof(int));
    }
    assert_true(sendmsg(a->fd, &message, MSG_NOSIGNAL) == (ssize_t)part.iov_len);
    part = (struct iovec){a->text, sizeof a->text - 1};
    message = (struct msghdr){.msg_iov = &part,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(a->fd, &message, MSG_CMSG_CLOEXEC);
    assert_true(n > 0);
    a->text[n] = '\0';
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    a->fds[0] = a->fds[1] = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(a->fds, CMSG_DATA(c), 2 * sizeof(int));
    return atoi(a->text);
}

int arbiter_say(struct arbiter_process *a, const char *line)
{
    return arbiter_say_with(a, line, NULL);
}

long long arbiter_number(struct arbiter_process *a, const char *after, const char *key)
{
    char name[64];
    assert_int_equal(arbiter_say(a, "describe"), 0);
    const char *at = strstr(a->text, after);
    snprintf(name, sizeof name, "\"%s\": ", key);
    at = at ? strstr(at, name) : NULL;
    return at ? atoll(at + strlen(name)) : -1;
}

bool arbiter_says(struct arbiter_process *a, const char *text)
{
    assert_int_equal(arbiter_say(a, "describe"), 0);
    return strstr(a->text, text) != NULL;
}

struct worker worker_start(struct arbiter_process *a, const char *name,
                           int (*body)(struct gp_seat *seat, int page_fd, int bell_fd))
{
    char line[128];
    struct worker w;
    snprintf(line, sizeof line, "join %s", name);
    w.seat = arbiter_say(a, line);
    assert_true(w.seat >= 0);
    w.page_fd = a->fds[0];
    w.bell_fd = a->fds[1];
    int go[2];
    assert_int_equal(pipe(go), 0);
    w.pid = fork();
    assert_true(w.pid >= 0);
    if (w.pid == 0) {
        struct gp_seat *seat;
        char byte;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_TIMERSLACK, 1000ul);
        close(a->fd);
        close(go[1]);
        if (read(go[0], &byte, 1) != 0 || gp_seat_open(w.page_fd, w.bell_fd, &seat) != 0)
            _exit(99);
        _exit(body(seat, w.page_fd, w.bell_fd));
    }
    snprintf(line, sizeof line, "started %d %d", w.seat, w.pid);
    assert_int_equal(arbiter_say(a, line), 0);
    close(go[0]);
    close(go[1]);
    return w;
}

int worker_end(struct worker *w)
{
    int status;
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    close(w->page_fd);
    close(w->bell_fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void worker_kill(struct worker *w)
{
    kill(w->pid, SIGKILL);
    worker_end(w);
}
