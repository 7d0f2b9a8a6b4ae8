/* What others need, too: processes, disk, time. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

/* Enough to know that nobody counts; a thousand would be no better proof. */
#define CHILDREN 64
#define FILL_MIB 96

static bool forks(void)
{
    pid_t children[CHILDREN];
    int count = 0, why;
    while (count < CHILDREN && (children[count] = fork()) > 0)
        count++;
    if (count < CHILDREN && children[count] == 0) {
        pause();
        _exit(0);
    }
    why = errno;
    for (int i = 0; i < count; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    errno = why;
    return count == CHILDREN;
}

static bool shell(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
        _exit(1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 7;
}

static bool fills(const char *path)
{
    static char piece[1 << 20];
    memset(piece, 1, sizeof piece);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), mib = 0;
    while (file >= 0 && mib < FILL_MIB && write(file, piece, sizeof piece) == sizeof piece)
        mib++;
    int why = errno;
    if (file >= 0) {
        close(file);
        unlink(path);
    }
    errno = why;
    return mib == FILL_MIB;
}

/* Folders that are on a disk of the machine's. */
static bool disk(void)
{
    return fills(TARGET_RUN "/hostile-file") || fills("/var/tmp/hostile-file") ||
           fills("/hostile-file");
}

static bool real_time(void)
{
    struct sched_param first = {.sched_priority = 1}, last = {0};
    return sched_setscheduler(0, SCHED_FIFO, &first) == 0 &&
           sched_setscheduler(0, SCHED_OTHER, &last) == 0;
}

static bool before_others(void)
{
    errno = 0;
    return setpriority(PRIO_PROCESS, 0, -5) == 0;
}

static bool core_file(void)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_CORE, &all) == 0;
}

const struct attack attacks_on_resources[] = {
    {"resource-processes", forks},
    {"resource-shell", shell},
    {"resource-disk", disk},
    {"resource-real-time", real_time},
    {"resource-priority", before_others},
    {"resource-core-file", core_file},
    {0},
};
