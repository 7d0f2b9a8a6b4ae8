#include "output.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session.h"

int gpw_output_open(struct gpw_output *o)
{
    fflush(stdout);
    o->file = memfd_create("gpupool-output", MFD_CLOEXEC);
    if (o->file < 0 || fcntl(o->file, F_SETFL, O_APPEND) != 0 || dup2(o->file, STDOUT_FILENO) < 0)
        return -1;
    return setvbuf(stdout, NULL, _IOFBF, 1 << 16);
}

uint32_t gpw_output_take(struct gpw_output *o, const char **text)
{
    fflush(stdout);
    struct stat st;
    if (o->file < 0 || fstat(o->file, &st) != 0 || st.st_size <= o->taken) {
        if (o->taken > 0 && ftruncate(o->file, 0) == 0)
            o->taken = 0;
        return 0;
    }
    ssize_t n = pread(o->file, o->piece, sizeof o->piece, o->taken);
    if (n <= 0)
        return 0;
    o->taken += n;
    *text = o->piece;
    return (uint32_t)n;
}

#define PENDING_MAX ((off_t)16 << 20)

void gpw_output_bound(struct gpw_output *o)
{
    struct stat st;
    if (o->file < 0 || fstat(o->file, &st) != 0 || st.st_size - o->taken <= PENDING_MAX)
        return;
    gpw_log("warn", "%lld MiB that kernels have printed are left out: nobody has waited for them",
            (long long)(st.st_size - o->taken) >> 20);
    if (ftruncate(o->file, 0) == 0)
        o->taken = 0;
}
