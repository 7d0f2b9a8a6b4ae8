#include "accept_lacks.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_bool lacking;
static atomic_int calls;

void accept_lacks(bool lacks)
{
    calls = 0;
    lacking = lacks;
}

int accept_calls(void)
{
    return calls;
}

/* In place of libc's, for all that is linked with it and for plug-ins. */
__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *address,
                                                   socklen_t *size, int flags)
{
    calls++;
    if (!lacking)
        return (int)syscall(SYS_accept4, fd, address, size, flags);
    errno = EMFILE;
    return -1;
}
