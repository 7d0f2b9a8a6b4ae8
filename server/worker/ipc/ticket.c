#include "ticket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The bytes that are locked; the file has none. */
enum { OWNER, USER };

static bool lock(int ticket, int command, short type, int byte, struct flock *found)
{
    *found = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(ticket, command, found) == 0;
}

int gpw_ticket_new(void)
{
    int ticket = memfd_create("gpupool-ticket", MFD_CLOEXEC);
    if (ticket >= 0 && gpw_ticket_own(ticket) && gpw_ticket_use(ticket))
        return ticket;
    if (ticket >= 0)
        close(ticket);
    return -1;
}

bool gpw_ticket_use(int ticket)
{
    struct flock l;
    return lock(ticket, F_SETLK, F_RDLCK, USER, &l);
}

void gpw_ticket_leave(int ticket)
{
    struct flock l;
    lock(ticket, F_SETLK, F_UNLCK, USER, &l);
}

bool gpw_ticket_used(int ticket)
{
    struct flock l;
    return lock(ticket, F_GETLK, F_WRLCK, USER, &l) && l.l_type != F_UNLCK;
}

bool gpw_ticket_own(int ticket)
{
    struct flock l;
    return lock(ticket, F_SETLK, F_WRLCK, OWNER, &l);
}

void gpw_ticket_disown(int ticket)
{
    struct flock l;
    lock(ticket, F_SETLK, F_UNLCK, OWNER, &l);
}
