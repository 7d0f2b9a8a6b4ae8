#include "tell.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "session.h"

static int server = -1;

int gpw_tell_open(void)
{
    server = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    return server < 0 ? -1 : 0;
}

void gpw_tell(const char *word)
{
    if (dprintf(server, "%s\n", word) < 0)
        gpw_log("warn", "the server cannot be told '%s': %m", word);
}
