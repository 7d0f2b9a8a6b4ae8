#include "tell.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int gpw_tell_open(struct gpw_session *s)
{
    s->told = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    return s->told < 0 ? -1 : 0;
}

void gpw_tell(const struct gpw_session *s, const char *word)
{
    if (dprintf(s->told, "%s\n", word) < 0)
        gpw_log("warn", "the server cannot be told '%s': %m", word);
}
