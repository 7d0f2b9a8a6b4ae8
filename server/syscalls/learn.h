/*
 * The learning mode: a program's system calls are counted and let through, so that the list of
 * what a worker may call (workers.list) can be renewed on a machine with the real driver.
 */
#ifndef GP_LEARN_H
#define GP_LEARN_H

/* From here on every system call of this process, of its children and of the program that it
 * executes is counted by a process beside it (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2)), which
 * needs no rights. What it saw since it appends to `out`, a file open for appending, in one write,
 * a line `CALL KEY COUNT` for each (counts.h): before a call goes on that none of them made yet, or
 * that ends one, and when the last has ended. Until then it holds a shared lock (flock(2)) on `out`.
 * It slows every call, and protects from nothing.
 * 0, or -1 with errno; the caller has one thread. */
int gp_learn_begin(int out);

#endif
