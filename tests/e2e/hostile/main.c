/* In a worker's place: tries everything, says of each attack whether it was refused, and ends
 * as a worker that could not start. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

/* A refused system call ends a worker. Here it only fails, so that the next can be tried. */
static void refused(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    ucontext_t *at = context;
#if defined(__x86_64__)
    at->uc_mcontext.gregs[REG_RAX] = -EPERM;
#elif defined(__aarch64__)
    at->uc_mcontext.regs[0] = (unsigned long long)-EPERM;
#endif
}

static void try_all(const struct attack *list)
{
    for (const struct attack *a = list; a->name; a++) {
        errno = 0;
        bool done = a->try_it();
        dprintf(STDERR_FILENO, "info: attack %s %s (%s)\n", a->name, done ? "succeeded" : "refused",
                done ? "-" : strerror(errno));
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts(TARGET_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--again") == 0) {
        dprintf(STDERR_FILENO, "info: attack exec succeeded (-)\ninfo: attacks over\n");
        return 1;
    }
    struct sigaction action = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSYS, &action, NULL);
    try_all(attacks_on_processes);
    try_all(attacks_on_files);
    try_all(attacks_on_sockets);
    try_all(attacks_on_the_kernel);
    try_all(attacks_on_resources);
    execl("/proc/self/exe", argv[0], "--again", (char *)NULL); /* at last: there is no way back */
    dprintf(STDERR_FILENO, "info: attack exec refused (%s)\ninfo: attacks over\n", strerror(errno));
    return 1;
}
