/*
 * What our libcupti.so asks of our libcuda.so.1, which it finds as NVIDIA's finds its own: a table
 * of cuGetExportTable. Both are of one release; another one's table has another name.
 */
#ifndef GPC_ACTIVITY_TABLE_H
#define GPC_ACTIVITY_TABLE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "activity_record.h"
#include "observe.h"

/* The table's name. Its last byte is the form of what is below. */
#define GPC_ACTIVITY_TABLE                                                                         \
    {{0x67, 0x70, 0x75, 0x70, 0x6f, 0x6f, 0x6c, 0x20, 'c', 'u', 'p', 't', 'i', 0, 0, 3}}

/* Told while somebody observes, on any thread. */
struct gpc_activity_observer {
    /* What a GPU did, in CLOCK_MONOTONIC of this machine; `correlation` is that of the call that
     * asked for it, 0 if it is not known. The callee may call nothing of CUDA. */
    void (*record)(const struct gp_activity_record *record, const char *name, uint32_t correlation);
    /* A call of the driver's API begins: nothing of it has been done, no lock is held. */
    void (*calling)(struct gpc_observed *call);
    /* It has returned; `sent`: to a GPU host it sent something. */
    void (*called)(struct gpc_observed *call, CUresult result, bool sent);
    /* A context has been made, or is about to end. */
    void (*context)(CUcontext context, bool made);
};

struct gpc_activity_table {
    /* NULL: no more. The observer stays where it is for the life of the process. Without `calls`
     * it is told of contexts alone, and calls cost what they cost when nobody observes. */
    void (*observe)(const struct gpc_activity_observer *observer, bool calls);
    /* Record on the GPU hosts, now or when there are sessions; or no more. */
    CUresult (*record)(bool on);
    /* As gpc_activity_flush. */
    CUresult (*flush)(bool forced, uint64_t *dropped);
    /* What cuCtxGetCurrent, cuCtxGetId, cuCtxGetDevice and cuFuncGetName say, but no calls of the
     * program's: nobody observes or counts them, and none fails. What is not known is NULL, 0 or
     * -1. */
    CUcontext (*current)(void);
    uint64_t (*number)(CUcontext context);
    CUdevice (*device)(CUcontext context);
    const char *(*kernel)(CUfunction function);
};
extern const struct gpc_activity_table gpc_activity_table;

/* For the client library itself, where GPC_OBSERVED. */
struct gpc_session;
/* A call begins, and gets its number; and ends. */
void gpc_activity_call_begin(struct gpc_observed *call);
void gpc_activity_call_end(struct gpc_observed *call, CUresult result);
/* The thread's call sends this message. Under the session's submit_lock. */
void gpc_activity_note_sent(const struct gpc_session *s, uint64_t seq);
static inline void gpc_activity_sent(const struct gpc_session *s, uint64_t seq)
{
    if (GPC_OBSERVED(GPC_OBSERVER_ACTIVITY))
        gpc_activity_note_sent(s, seq);
}
void gpc_activity_context(CUcontext context, bool made);
/* The thread's call copies from or to such memory of this host, a gp_cupti_memory: the worker
 * makes all such copies from and to pinned memory. */
void gpc_activity_host_memory(uint8_t memory);
void gpc_activity_tell(const struct gpc_session *s, const struct gp_activity_record *r,
                       const char *name);
/* Records are to be asked for when there are sessions. */
bool gpc_activity_wanted(void);

#endif
