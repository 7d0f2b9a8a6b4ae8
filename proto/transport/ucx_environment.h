/*
 * The environment as UCX is to see it while it is loaded and configured. Then, and only then, it
 * reads what nobody can set later: whether to hook the program's mmap and munmap, which signals to
 * take, where to print. It must not find there what the program has set for a UCX of its own, and
 * the program must not find what is set here.
 *
 * So another array of variables stands in the place of the program's for that time. Both stay
 * whole: who reads one meanwhile reads it to its end. Who sets a variable meanwhile does so in
 * one of its own, which then stays.
 */
#ifndef GP_UCX_ENVIRONMENT_H
#define GP_UCX_ENVIRONMENT_H

struct ucx_environment {
    char **before, **ours;
};

/* Once in a process: what it makes stays, for those who still read it. -ENOMEM */
int ucx_environment_enter(struct ucx_environment *e);
void ucx_environment_leave(struct ucx_environment *e);

#endif
