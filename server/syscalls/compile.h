/*
 * What the program has that gen_filter.py writes: libseccomp turns the rules into instructions,
 * and those are written as C. It runs while gpupool is built, never afterwards.
 */
#ifndef GP_COMPILE_H
#define GP_COMPILE_H

#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#ifndef CSIGNAL
#define CSIGNAL 0xff
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

void gp_compile_open(int argc, char **argv);
/* One rule; `where` is the line of the list, for the error. A call that this architecture does
 * not have is left out, one that libseccomp does not know ends the program. */
void gp_compile_rule(scmp_filter_ctx filter, const char *where, uint32_t action, const char *call,
                     unsigned count, ...);
/* The driver's two filters: one that refuses, one that only logs. */
void gp_compile(const char *driver, void (*rules)(scmp_filter_ctx));
int gp_compile_close(void);

#endif
