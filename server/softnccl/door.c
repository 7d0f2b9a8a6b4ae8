/* Who connects to a port of ours must say the secret before anything else is read. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "monotonic.h"
#include "softnccl.h"

static void drop(struct sn_door *door, unsigned i)
{
    close(door->guests[i].fd);
    door->count--;
    memmove(&door->guests[i], &door->guests[i + 1], (door->count - i) * sizeof *door->guests);
}

static void let_wait(struct sn_door *door)
{
    int fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (door->count == SN_DOOR_PENDING)
        drop(door, 0);
    door->guests[door->count].fd = fd;
    door->guests[door->count++].got = 0;
}

/* 1: the greeting is whole and has the secret; 0: there is more to come; -1: not one of us. */
static int listen_to(struct sn_door *door, struct sn_guest *guest)
{
    ssize_t n = recv(guest->fd, guest->greeting + guest->got, door->size - guest->got,
                     MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    guest->got += (size_t)n;
    if (guest->got >= SN_SECRET_BYTES && !sn_secret_equal(guest->greeting, door->secret))
        return -1;
    return guest->got == door->size;
}

/* The connection of the first whose greeting is whole; -1: nobody's. */
static int look(struct sn_door *door, const struct pollfd *polled, void *greeting)
{
    for (unsigned i = door->count; i-- > 0;) {
        int said = polled[i].revents ? listen_to(door, &door->guests[i]) : 0;
        if (said < 0)
            drop(door, i);
        if (said <= 0)
            continue;
        int fd = door->guests[i].fd;
        memcpy(greeting, door->guests[i].greeting, door->size);
        door->count--;
        memmove(&door->guests[i], &door->guests[i + 1], (door->count - i) * sizeof *door->guests);
        return fd;
    }
    return -1;
}

/* For poll; 0: it is late. */
static int time_left(const struct sn_door *door)
{
    uint64_t now = gp_now_ns();
    if (!door->until)
        return -1;
    return now < door->until ? (int)((door->until - now) / 1000000) + 1 : 0;
}

int sn_door_next(struct sn_door *door, void *greeting)
{
    for (;;) {
        int left = time_left(door);
        if (left == 0)
            return -ETIMEDOUT;
        struct pollfd polled[SN_DOOR_PENDING + 2];
        for (unsigned i = 0; i < door->count; i++)
            polled[i] = (struct pollfd){.fd = door->guests[i].fd, .events = POLLIN};
        struct pollfd *more = polled + door->count;
        more[0] = (struct pollfd){.fd = door->listener, .events = POLLIN};
        more[1] = (struct pollfd){.fd = door->wake, .events = POLLIN};
        bool comes;
        if (poll(polled, door->count + 2, left) < 0) {
            if (errno != EINTR)
                return -errno;
            continue;
        }
        if (more[1].revents)
            return -ECANCELED;
        comes = more[0].revents != 0;
        int fd = look(door, polled, greeting);
        if (comes)
            let_wait(door);
        if (fd >= 0)
            return fd;
    }
}

void sn_door_close(struct sn_door *door)
{
    while (door->count)
        drop(door, door->count - 1);
}
