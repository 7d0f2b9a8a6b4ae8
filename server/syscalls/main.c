/*
 * gpupool-learn FILE -- PROGRAM [ARGUMENT…]: becomes PROGRAM, and when it has ended with all its
 * children FILE has gained what they called (learn.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "learn.h"

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[2], "--") != 0) {
        fprintf(stderr, "usage: gpupool-learn FILE -- PROGRAM [ARGUMENT ...]\n");
        return 2;
    }
    int out = open(argv[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) {
        fprintf(stderr, "gpupool-learn: %s cannot be written: %s\n", argv[1], strerror(errno));
        return 1;
    }
    if (gp_learn_begin(out) != 0) {
        fprintf(stderr,
                "gpupool-learn: this kernel does not let calls be watched "
                "(seccomp, SECCOMP_RET_USER_NOTIF): %s\n",
                strerror(errno));
        return 1;
    }
    execvp(argv[3], argv + 3);
    fprintf(stderr, "gpupool-learn: %s cannot be run: %s\n", argv[3], strerror(errno));
    return 127;
}
