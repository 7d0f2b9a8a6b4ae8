#include "transport/standard_fds.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* No file: in a chroot there may be no /dev/null. */
void gp_standard_fds_hold(struct gp_standard_fds *f)
{
    int why = errno;
    f->count = 0;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    while (fd >= 0 && fd <= STDERR_FILENO && f->count < sizeof f->held / sizeof f->held[0]) {
        gp_fd_note(&f->held[f->count++], fd);
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    if (fd >= 0)
        close(fd);
    errno = why;
}

/* Another thread may have put something in its place meanwhile, as one does that becomes a daemon. */
void gp_standard_fds_release(struct gp_standard_fds *f)
{
    int why = errno;
    while (f->count) {
        const struct gp_fd_mark *mark = &f->held[--f->count];
        if (gp_fd_is(mark))
            close(mark->fd);
    }
    errno = why;
}
