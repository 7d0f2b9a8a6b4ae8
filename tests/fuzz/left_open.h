/* Whether an input has left a descriptor open. */
#ifndef FUZZ_LEFT_OPEN_H
#define FUZZ_LEFT_OPEN_H

#include <stdbool.h>
#include <unistd.h>

static inline int lowest_free(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

/* `before`: what was free then. A thread of the fuzzer's own may open something for a moment. */
static inline bool left_open(int before)
{
    for (int i = 0; i < 3; i++) {
        if (lowest_free() <= before)
            return false;
        usleep(20000);
    }
    return true;
}

#endif
