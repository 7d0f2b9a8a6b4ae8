#include "output.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session.h"

/* A file, not a pipe: the driver prints on the thread that would have to drain
 * the pipe. */
static int file = -1;
static off_t taken;

int gpw_output_open(void)
{
    fflush(stdout);
    file = memfd_create("gpupool-output", MFD_CLOEXEC);
    if (file < 0 || fcntl(file, F_SETFL, O_APPEND) != 0 || dup2(file, STDOUT_FILENO) < 0)
        return -1;
    return setvbuf(stdout, NULL, _IOFBF, 1 << 16);
}

uint32_t gpw_output_take(const char **text)
{
    static char piece[1 << 16];
    fflush(stdout);
    struct stat st;
    if (file < 0 || fstat(file, &st) != 0 || st.st_size <= taken) {
        if (taken > 0 && ftruncate(file, 0) == 0)
            taken = 0;
        return 0;
    }
    ssize_t n = pread(file, piece, sizeof piece, taken);
    if (n <= 0)
        return 0;
    taken += n;
    *text = piece;
    return (uint32_t)n;
}

#define PENDING_MAX ((off_t)16 << 20)

void gpw_output_bound(void)
{
    struct stat st;
    if (file < 0 || fstat(file, &st) != 0 || st.st_size - taken <= PENDING_MAX)
        return;
    gpw_log("warn", "%lld MiB that kernels have printed are left out: nobody has waited for them",
            (long long)(st.st_size - taken) >> 20);
    if (ftruncate(file, 0) == 0)
        taken = 0;
}
