/*
 * gpupool-arbiter: whose turn it is on one GPU, and what of its memory is whose. The server
 * starts one for each GPU, hands it the socket at which it listens, and finds it there again
 * after a restart: it ends when there is neither a server nor a worker.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "arbiter.h"
#include "closed_memory.h"

int main(int argc, char **argv)
{
    struct gp_arbiter *a;
    if (argc != 3 || strcmp(argv[1], "--listen-fd") != 0) {
        fprintf(stderr, "usage: gpupool-arbiter --listen-fd N\n(gpupool-server starts it)\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000ul);  /* ns */
    setpriority(PRIO_PROCESS, 0, -10); /* all tenants wait for it; without the right: as others */
    if (gp_memory_close() != 0) {
        fprintf(stderr, "gpupool-arbiter: its memory cannot be closed to other processes: %m\n");
        return 1;
    }
    int r = gp_arbiter_new(atoi(argv[2]), &a);
    if (r != 0) {
        fprintf(stderr, "gpupool-arbiter: cannot begin: %s\n", strerror(-r));
        return 1;
    }
    while (!gp_arbiter_done(a))
        gp_arbiter_step(a, -1);
    gp_arbiter_free(a);
    return 0;
}
