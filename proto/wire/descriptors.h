/* Descriptors that came with a message over a Unix socket. */
#ifndef GP_DESCRIPTORS_H
#define GP_DESCRIPTORS_H

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The first `most` go to `kept`, the others are closed; what nothing came for stays as it is.
 * How many came in all. */
static inline unsigned gp_descriptors_take(struct msghdr *message, int *kept, unsigned most)
{
    unsigned seen = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (seen < most)
                kept[seen] = fd;
            else
                close(fd);
            seen++;
        }
    }
    return seen;
}

#endif
