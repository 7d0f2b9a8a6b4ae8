/*
 * gpupool-jail starts one worker in a jail: it reads what the jail is to be from a descriptor,
 * makes the layers one after the other, says of each whether it is on, and executes the worker
 * as a child of the server. It needs no right of its own (it is not setuid): what the server may
 * do, it may, and a layer that the host forbids is off, with the reason.
 */
#ifndef GPJ_JAIL_H
#define GPJ_JAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The layers, in the order in which they are made. */
#define GPJ_LAYERS(X)                                                                              \
    X(DESCRIPTORS, "descriptors")                                                                  \
    X(USER_NAMESPACE, "user-namespace")                                                            \
    X(PID, "pid")                                                                                  \
    X(IPC, "ipc")                                                                                  \
    X(NET, "net")                                                                                  \
    X(COLLECTIVES, "collectives")                                                                  \
    X(UTS, "uts")                                                                                  \
    X(MOUNT, "mount")                                                                              \
    X(CGROUP, "cgroup")                                                                            \
    X(ROOT, "root")                                                                                \
    X(DEVICES, "devices")                                                                          \
    X(PROC, "proc")                                                                                \
    X(RLIMITS, "rlimits")                                                                          \
    X(UID, "uid")                                                                                  \
    X(CAPABILITIES, "capabilities")                                                                \
    X(NO_NEW_PRIVS, "no-new-privs")                                                                \
    X(ENVIRONMENT, "environment")                                                                  \
    X(SECCOMP, "seccomp")

enum gpj_layer {
#define X(id, name) GPJ_##id,
    GPJ_LAYERS(X)
#undef X
        GPJ_LAYER_COUNT
};

/* The layer of this name, -1 if there is none. */
int gpj_layer_find(const char *name);

/*
 * What is said on the status descriptor, a line each: `layer NAME on`, `layer NAME off REASON`,
 * `holder PID`, `pid PID`, `cost-us N`, `error TEXT`. Its end says that the worker runs, or that
 * the starter has failed.
 */
void gpj_status_open(int fd, const bool required[GPJ_LAYER_COUNT]);
void gpj_layer_on(enum gpj_layer layer);
/* If the layer is required, this is the end: see gpj_fail. */
void gpj_layer_off(enum gpj_layer layer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void gpj_say(const char *word, int64_t value);
/* One line to the status descriptor, or to stderr where there is none; ends the process. */
void gpj_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
