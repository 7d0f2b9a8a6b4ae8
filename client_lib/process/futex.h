/* Threads of this process that sleep until a word is another one. */
#ifndef GPC_FUTEX_H
#define GPC_FUTEX_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* While it is `seen`; it may also return for nothing. */
static inline void gpc_futex_wait(uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* So many of those that sleep. */
static inline void gpc_futex_wake(uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

#endif
