#include "arbiter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "arbiter_internal.h"
#include "descriptors.h"

#define MS UINT64_C(1000000)
/* While somebody waits, turns are looked at so often. */
#define TICK MS
/* Without descriptors for a server that connects, the kernel tells of it at once again. */
#define DEAF (100 * MS)
/* Bells that are heard of one worker in TICK: ours has not so much to say. */
#define RINGS 256
#define EVENTS 64
/* Looks at the turn until it stands; a worker that begins and ends all the time has no more. */
#define SETTLE 4
#define LINE 4096
#define ANSWER 262144

int gp_arbiter_watch(struct gp_arbiter *a, int fd, enum gp_arbiter_source source, int index,
                     uint32_t events)
{
    struct epoll_event e = {events, {.u64 = (uint64_t)source << 32 | (uint32_t)index}};
    if (epoll_ctl(a->epoll, EPOLL_CTL_MOD, fd, &e) == 0)
        return 0;
    return epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : -errno;
}

int gp_arbiter_new(int listener, struct gp_arbiter **out)
{
    struct gp_arbiter *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    a->listener = listener;
    for (int i = 0; i < GP_ARBITER_SERVERS; i++)
        a->servers[i] = -1;
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    a->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int r = gp_board_new(&a->board);
    if (r == 0 && (a->epoll < 0 || a->timer < 0))
        r = -errno;
    if (r == 0)
        r = gp_arbiter_watch(a, a->timer, GP_ARBITER_OTHER, a->timer, EPOLLIN);
    if (r == 0 && listener >= 0)
        r = gp_arbiter_watch(a, listener, GP_ARBITER_OTHER, listener, EPOLLIN);
    if (r != 0) {
        gp_arbiter_free(a);
        return r;
    }
    a->board->shut = gp_arbiter_shut;
    a->board->keeps = gp_arbiter_keeps;
    a->board->context = a;
    *out = a;
    return 0;
}

void gp_arbiter_free(struct gp_arbiter *a)
{
    for (int i = 0; i < a->top; i++)
        gp_arbiter_leave(a, i);
    for (int i = 0; i < GP_ARBITER_SERVERS; i++)
        if (a->servers[i] >= 0)
            close(a->servers[i]);
    if (a->epoll >= 0)
        close(a->epoll);
    if (a->timer >= 0)
        close(a->timer);
    gp_board_free(a->board);
    free(a);
}

struct gp_board *gp_arbiter_board(struct gp_arbiter *a)
{
    return a->board;
}

bool gp_arbiter_done(const struct gp_arbiter *a)
{
    bool served = false;
    for (int i = 0; i < GP_ARBITER_SERVERS; i++)
        served |= a->servers[i] >= 0;
    for (int i = 0; i < a->top; i++)
        served |= a->seats[i].page != NULL;
    return a->served && !served;
}

/* --- seats ----------------------------------------------------------------------------- */

/* The page of member `member` is mapped; what the descriptors cost is this function's. */
static int seat_take(struct gp_arbiter *a, int member, int page_fd, int bell_fd)
{
    struct seat *s = &a->seats[member];
    *s = (struct seat){.page_fd = page_fd, .bell_fd = bell_fd, .pid_fd = -1};
    int r = gp_page_map(page_fd, &s->page);
    if (r == 0) {
        /* by edges: the bell is never read, which a worker could make wait */
        r = gp_arbiter_watch(a, bell_fd, GP_ARBITER_BELL, member, EPOLLIN | EPOLLET);
        if (r != 0)
            gp_page_unmap(s->page);
    }
    if (r != 0) {
        close(page_fd);
        close(bell_fd);
        s->page = NULL;
        gp_board_leave(a->board, member);
        return r;
    }
    s->synced = gp_board_now();
    s->page->flags = s->page->result = 0;
    s->page->collective_most = 0; /* as another arbiter had it */
    if (a->top <= member)
        a->top = member + 1;
    a->entitled = 0; /* slices are told anew */
    return member;
}

int gp_arbiter_join(struct gp_arbiter *a, const char *tenant, int *page_fd, int *bell_fd)
{
    int page, bell, member = gp_board_join(a->board, tenant);
    if (member < 0)
        return member;
    int r = gp_page_make(&page, &bell);
    if (r != 0) {
        gp_board_leave(a->board, member);
        return r;
    }
    r = seat_take(a, member, page, bell);
    if (r < 0)
        return r;
    GP_PAGE_STORE(a->seats[member].page->version, GP_PAGE_VERSION);
    *page_fd = page;
    *bell_fd = bell;
    return member;
}

/* What the page says is held is charged. What was asked for when the last arbiter ended is served
 * by this one: no request is worse for being served twice. */
static void take_over(struct gp_arbiter *a, int member)
{
    struct seat *s = &a->seats[member];
    struct gp_page *p = s->page;
    GP_PAGE_STORE(p->granted, 0);
    GP_PAGE_FENCE();
    uint64_t held = GP_PAGE_LOAD(p->held), claims = GP_PAGE_LOAD(p->claims);
    s->asked = GP_PAGE_LOAD(p->answered);
    s->rang = true;
    s->launches = GP_PAGE_LOAD(p->launches);
    if (GP_PAGE_LOAD(p->runs) & 1) /* its turn was another arbiter's to give */
        a->board->members[member].late = 1;
    s->bytes_copied = GP_PAGE_LOAD(p->bytes_copied);
    for (int way = 0; way < GP_BOARD_WAYS; way++) {
        s->copied[way] = GP_PAGE_LOAD(p->copied[way]);
        GP_PAGE_STORE(p->alone_until[way], 0);
    }
    held = held > claims ? held : claims;
    if (held <= GP_PAGE_MEMORY_MOST)
        gp_board_memory_use(a->board, member, held);
    else
        gp_arbiter_fault(a, member, "its page says that it has more memory than there is");
}

int gp_arbiter_adopt(struct gp_arbiter *a, const char *tenant, pid_t pid, int page_fd, int bell_fd)
{
    int member = gp_board_join(a->board, tenant);
    if (member < 0) {
        close(page_fd);
        close(bell_fd);
        return member;
    }
    int r = seat_take(a, member, page_fd, bell_fd);
    if (r < 0)
        return r;
    take_over(a, member);
    r = gp_arbiter_started(a, member, pid);
    return r == 0 ? member : r;
}

int gp_arbiter_started(struct gp_arbiter *a, int member, pid_t pid)
{
    if (member < 0 || member >= a->top || !a->seats[member].page || a->seats[member].pid_fd >= 0)
        return -ENOENT;
    struct seat *s = &a->seats[member];
    s->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    int r = s->pid_fd < 0 ? -errno
                          : gp_arbiter_watch(a, s->pid_fd, GP_ARBITER_PID, member, EPOLLIN);
    if (r != 0) {
        gp_arbiter_leave(a, member);
        return r;
    }
    a->board->members[member].pid = pid;
    return 0;
}

void gp_arbiter_leave(struct gp_arbiter *a, int member)
{
    if (member < 0 || member >= a->top || !a->seats[member].page)
        return;
    struct seat *s = &a->seats[member];
    epoll_ctl(a->epoll, EPOLL_CTL_DEL, s->bell_fd, NULL); /* others may have it open */
    if (s->pid_fd >= 0)
        close(s->pid_fd);
    gp_page_unmap(s->page);
    close(s->page_fd);
    close(s->bell_fd);
    s->page = NULL;
    gp_board_leave(a->board, member);
    while (a->top > 0 && !a->seats[a->top - 1].page)
        a->top--;
}

int gp_arbiter_find(struct gp_arbiter *a, pid_t pid)
{
    for (int i = 0; i < a->top; i++)
        if (a->seats[i].page && a->board->members[i].pid == pid)
            return i;
    return -ENOENT;
}

int gp_arbiter_seat(struct gp_arbiter *a, int member, int *page_fd, int *bell_fd)
{
    if (member < 0 || member >= a->top || !a->seats[member].page)
        return -ENOENT;
    *page_fd = a->seats[member].page_fd;
    *bell_fd = a->seats[member].bell_fd;
    return 0;
}

/* --- servers ------------------------------------------------------------------------------ */

static void server_gone(struct gp_arbiter *a, int index)
{
    close(a->servers[index]);
    a->servers[index] = -1;
    for (int i = 0; i < GP_ARBITER_SERVERS; i++)
        if (a->servers[i] >= 0)
            return;
    for (int i = 0; i < a->top; i++) /* whose workers it has not started */
        if (a->seats[i].page && a->board->members[i].pid == GP_BOARD_NOT_STARTED)
            gp_arbiter_leave(a, i);
}

/* Whether servers that connect are heard of; they wait meanwhile. */
static void listener_watch(struct gp_arbiter *a, bool deaf)
{
    gp_arbiter_watch(a, a->listener, GP_ARBITER_OTHER, a->listener, deaf ? 0 : EPOLLIN);
    a->deaf_until = deaf ? gp_board_now() + DEAF : 0;
}

static void server_comes(struct gp_arbiter *a)
{
    int fd = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct ucred who;
    socklen_t size = sizeof who;
    int free_at = 0;
    while (free_at < GP_ARBITER_SERVERS && a->servers[free_at] >= 0)
        free_at++;
    if (fd < 0) {
        listener_watch(a, true);
        return;
    }
    if (free_at == GP_ARBITER_SERVERS ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 ||
        (who.uid != 0 && who.uid != getuid()) ||
        gp_arbiter_watch(a, fd, GP_ARBITER_SERVER, free_at, EPOLLIN) != 0) {
        close(fd);
        return;
    }
    a->servers[free_at] = fd;
    a->served = true;
}

static bool answer_send(int fd, char *text, size_t length, const int fds[2])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {text, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds[0] >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(c), fds, 2 * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

/* One message. Descriptors are ours from here on, whatever else is wrong with it: `fds` has the
 * first two. Its length; 0: the server is to be let go; -EAGAIN: there is none. */
static ssize_t line_receive(int fd, char line[LINE], int fds[2])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec part = {line, LINE - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? -EAGAIN : 0;
    gp_descriptors_take(&message, fds, 2);
    if (n > 0 && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return n;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return 0;
}

/* A server that does not read its answers is let go: it can come again. */
static void server_serve(struct gp_arbiter *a, int index)
{
    static char answer[ANSWER];
    char line[LINE];
    int fds[2] = {-1, -1}, with[2] = {-1, -1};
    ssize_t n = line_receive(a->servers[index], line, fds);
    if (n == -EAGAIN)
        return;
    if (n <= 0) {
        server_gone(a, index);
        return;
    }
    line[n] = '\0';
    int length = gp_arbiter_command(a, line, fds, answer, sizeof answer, with);
    if (length >= (int)sizeof answer ||
        !answer_send(a->servers[index], answer, (size_t)length, with))
        server_gone(a, index);
}

/* --- time ---------------------------------------------------------------------------------- */

static bool somebody_waits(const struct gp_board *b)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (b->tenants[i].wanting)
            return true;
    return false;
}

/* Setting it also takes back that it has gone off. */
static void timer_set(struct gp_arbiter *a, uint64_t now)
{
    const struct gp_board *b = a->board;
    struct itimerspec when = {0};
    uint64_t ns = a->deaf_until ? DEAF : 0;
    if (somebody_waits(b) || a->muffled) {
        ns = TICK;
        if (b->quantum_end > now && b->quantum_end - now < ns)
            ns = b->quantum_end - now;
    }
    when.it_value.tv_nsec = (long)ns;
    timerfd_settime(a->timer, 0, &when, NULL);
}

static void unmuffle(struct gp_arbiter *a, uint64_t now)
{
    a->muffled = false;
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        if (!s->page || !s->muffled || a->board->members[i].fault)
            continue;
        if (now - s->window <= TICK) {
            a->muffled = true;
            continue;
        }
        s->muffled = false;
        s->rings = 0;
        s->rang = true; /* what it has said meanwhile */
        gp_arbiter_watch(a, s->bell_fd, GP_ARBITER_BELL, i, EPOLLIN | EPOLLET);
    }
}

static void bell(struct gp_arbiter *a, int member, uint64_t now)
{
    struct seat *s = &a->seats[member];
    if (!s->page)
        return;
    s->rang = true;
    if (now - s->window > TICK) {
        s->window = now;
        s->rings = 0;
    }
    if (++s->rings < RINGS)
        return;
    s->muffled = a->muffled = true;
    gp_arbiter_watch(a, s->bell_fd, GP_ARBITER_BELL, member, 0);
}

static void settle(struct gp_arbiter *a)
{
    bool again = true;
    for (int i = 0; again && i < SETTLE; i++) {
        uint64_t now = gp_board_now();
        gp_board_turn(a->board, now);
        again = gp_arbiter_publish(a, now);
    }
}

static void handle(struct gp_arbiter *a, const struct epoll_event *e)
{
    int index = (int)(uint32_t)e->data.u64;
    switch ((enum gp_arbiter_source)(e->data.u64 >> 32)) {
    case GP_ARBITER_BELL:
        bell(a, index, gp_board_now());
        break;
    case GP_ARBITER_PID:
        gp_arbiter_leave(a, index);
        break;
    case GP_ARBITER_SERVER:
        if (a->servers[index] >= 0)
            server_serve(a, index);
        break;
    case GP_ARBITER_OTHER:
        if (index == a->listener)
            server_comes(a);
        break;
    }
}

void gp_arbiter_step(struct gp_arbiter *a, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(a->epoll, events, EVENTS, timeout_ms);
    gp_arbiter_sync_all(a);
    gp_arbiter_collectives_tell(a);
    for (int i = 0; i < n; i++)
        handle(a, &events[i]);
    if (a->muffled)
        unmuffle(a, gp_board_now());
    if (a->deaf_until && gp_board_now() >= a->deaf_until)
        listener_watch(a, false);
    for (int i = 0; i < a->top; i++) {
        if (!a->seats[i].page || !a->seats[i].rang)
            continue;
        a->seats[i].rang = false;
        gp_arbiter_serve(a, i);
    }
    settle(a);
    timer_set(a, gp_board_now());
}
