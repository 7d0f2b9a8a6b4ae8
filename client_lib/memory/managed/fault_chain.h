/*
 * The handler of SIGSEGV: ours first, then the application's. A program may install its own at
 * any time, before us or after; whenever memory is closed to the host, ours is put in front again.
 */
#ifndef GPC_FAULT_CHAIN_H
#define GPC_FAULT_CHAIN_H

#include <signal.h>
#include <stdbool.h>

/* Ask `serve` first, from now on. */
void gpc_fault_chain_keep(bool (*serve)(const siginfo_t *info, const void *context));
/* See to it that it still is asked. */
void gpc_fault_chain_check(void);

#endif
