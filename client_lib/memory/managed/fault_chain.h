/*
 * The handler of SIGSEGV: ours first, then the application's. A program may install its own at
 * any time, before us or after. Where its sigaction is ours it gets behind at once; else ours is
 * put in front again whenever memory is closed to the host.
 */
#ifndef GPC_FAULT_CHAIN_H
#define GPC_FAULT_CHAIN_H

#include <signal.h>
#include <stdbool.h>

/* Ask `serve` first, from now on. */
void gpc_fault_chain_keep(bool (*serve)(const siginfo_t *info, const void *context));
/* See to it that it still is asked. */
void gpc_fault_chain_check(void);
/* The application installs a handler (NULL: asks), and gets what was there before. False: ours is
 * not in front, so that this is for libc. */
bool gpc_fault_chain_set(const struct sigaction *action, struct sigaction *old);
/* libc's sigaction, where another one stands in its place (interposed/). */
extern int (*gpc_fault_chain_system)(int number, const struct sigaction *action,
                                     struct sigaction *old);

#endif
