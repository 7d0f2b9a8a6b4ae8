/*
 * Who looks at the calls of the application. The exported functions (generated,
 * gpc_trace_calls.c) ask gpc_observers once: one branch when nobody looks.
 */
#ifndef GPC_OBSERVE_H
#define GPC_OBSERVE_H

#include <cuda.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum gpc_observer {
    GPC_OBSERVER_TRACE = 1u << 0,    /* GPUPOOL_TRACE (trace.h) */
    GPC_OBSERVER_TIMELINE = 1u << 1, /* GPUPOOL_TIMELINE (timeline.h) */
    GPC_OBSERVER_ACTIVITY = 1u << 2, /* our libcupti.so (activity_table.h) */
    GPC_OBSERVER_CONTEXTS = 1u << 3, /* the same, of contexts alone: as long as it likes */
};
/* Who looks at every call. */
#define GPC_OBSERVERS_OF_CALLS (GPC_OBSERVER_TRACE | GPC_OBSERVER_TIMELINE | GPC_OBSERVER_ACTIVITY)

extern unsigned gpc_observers;
#define GPC_OBSERVED(who)                                                                          \
    __builtin_expect(__atomic_load_n(&gpc_observers, __ATOMIC_RELAXED) & (unsigned)(who), 0)

/* From some later call on: GPC_OBSERVED asks without an order. */
void gpc_observe(enum gpc_observer who);
void gpc_observe_no_more(enum gpc_observer who);

/* The calling thread, as the kernel counts them: C libraries before glibc 2.30 have no gettid. */
static inline pid_t gpc_observed_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* What is never run where nobody looks: it costs the functions that would run it nothing. */
#define GPC_COLD __attribute__((cold, noinline))

/* One call, from its entry to its return. */
struct gpc_observed {
    const char *name;    /* that the program called */
    const void *given;   /* its arguments, one behind the other as a structure has them; or NULL */
    CUfunction launched; /* of a launch: its kernel */
    uint64_t began_ns;
    uint32_t correlation; /* 0: it has no number */
    /* An observer's own, from where it is told that the call begins. */
    uint32_t number;
    uint64_t kept;
};
void gpc_observe_begin(struct gpc_observed *o);
void gpc_observe_end(struct gpc_observed *o, CUresult result);

#endif
