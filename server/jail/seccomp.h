/* Which system calls a worker may make (server/syscalls). */
#ifndef GPJ_SECCOMP_H
#define GPJ_SECCOMP_H

#include <stddef.h>

enum gpj_seccomp_mode {
    GPJ_SECCOMP_OFF,
    GPJ_SECCOMP_LOG, /* what would be refused is made, and told to the kernel's log */
    GPJ_SECCOMP_ENFORCE,
    GPJ_SECCOMP_LEARN /* all is made and counted: it protects from nothing */
};
enum gpj_profile { GPJ_PROFILE_CUDA, GPJ_PROFILE_SOFT };

/* For this process and what it executes; `learn` is the file for what is learned. 0: it is on;
 * 1: it is off, and `why` says the reason. */
int gpj_seccomp_install(enum gpj_seccomp_mode mode, enum gpj_profile profile, int learn, char *why,
                        size_t size);

#endif
