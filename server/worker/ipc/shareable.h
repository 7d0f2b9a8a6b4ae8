/*
 * What this session has in common with other processes of its lease on this host: device memory,
 * events, and pools, whose memory is shared piece by piece. Who has something to share names it by a random token; another worker that is told
 * the name asks the server, which asks this one (control.c) and hands over what is behind the
 * token: the driver's descriptor of the memory, its handle of the event, or which device the pool
 * is of. The server gives it to sessions of the same lease alone. A token ends with what it names.
 *
 * Memory is charged once, however many processes have it. With its descriptor goes a *ticket*, a
 * file of which processes lock bytes: the one that has OWNER is charged, each that has the memory
 * holds USER. The owner goes on being charged for memory that it has given back while somebody
 * else has it. When the owner dies, the kernel lets go of its locks, and the next that looks
 * becomes the owner.
 */
#ifndef GPW_SHAREABLE_H
#define GPW_SHAREABLE_H

#include "session.h"

#define GPW_TOKEN_BYTES 16
#define GPW_IPC_SESSION_BYTES 6 /* of a session's id, 12 hexadecimal digits */

/* What a session may have in common with others at a time. */
#define GPW_SHAREABLES_MAX 4096u

/* A worker's account of what is behind a token, a line: "memory BYTES UUID", with the descriptors
 * of memory and ticket, "event HANDLE", or "pool UUID"; "none". */
#define GPW_SHAREABLE_LINE 192
#define GPW_SHAREABLE_FDS 2

enum gpw_shared_kind {
    GPW_SHARES_MEMORY,
    GPW_SHARES_EVENT,
    GPW_SHARES_POOL,
};

struct gpw_shareable {
    struct gpw_shareable *next;
    uint8_t token[GPW_TOKEN_BYTES];
    uint8_t session[GPW_IPC_SESSION_BYTES]; /* that has made it */
    bool brought;                           /* that is another one */
    enum gpw_shared_kind kind;
    const void *own;         /* the event or pool, of our own, to know it by */
    CUipcEventHandle handle; /* the driver's */
    int memory, ticket;      /* descriptors */
    uint32_t ordinal;        /* the session's device, and its name everywhere */
    CUuuid device;
    uint64_t bytes;
    bool charged;
    bool ended;    /* this process has it no more, and is charged while others have it */
    unsigned uses; /* of the memory, in this process; 0: it has been brought, and not taken */
    unsigned left; /* how often it has been found so */
    CUdeviceptr mapped_at; /* where gp_ipc_map has it, 0: nowhere */
    unsigned maps;
};

/* What the name stands for, if this session has it. */
struct gpw_shareable *gpw_shareable_find(struct gpw_session *s, const struct gp_ipc_name *name);
struct gpw_shareable *gpw_shareable_mapped(struct gpw_session *s, CUdeviceptr at);
/* What such a name stands for. */
enum gpw_shared_kind gpw_shareable_kind(enum gp_ipc_kind kind);
/* Whether the name is of this session's own. */
bool gpw_shareable_is_own(const struct gpw_session *s, const struct gp_ipc_name *name);

/* Memory of the driver's that this session is charged for becomes shareable. The driver's error
 * where it cannot be exported. */
CUresult gpw_shareable_memory(struct gpw_session *s, CUmemGenericAllocationHandle memory,
                              uint32_t ordinal, uint64_t bytes, struct gpw_shareable **out);
CUresult gpw_shareable_event(struct gpw_session *s, CUevent event, struct gpw_shareable **out);
/* A pool of the session's device. */
CUresult gpw_shareable_pool(struct gpw_session *s, CUmemoryPool pool, uint32_t ordinal,
                            struct gpw_shareable **out);
/* The event or the pool has gone. */
void gpw_shareable_gone(struct gpw_session *s, enum gpw_shared_kind kind, const void *own);
/* A context has, with its events. */
void gpw_shareable_events_context_ended(struct gpw_session *s);
/* Its name for the client, but for the kind. */
void gpw_shareable_name(const struct gpw_shareable *one, struct gp_ipc_name *name);

/* What another worker has said of the token in `name`, and the descriptors that came, which are
 * taken over or closed. */
CUresult gpw_shareable_brought(struct gpw_session *s, const struct gp_ipc_name *name,
                               const char *line, const int fds[GPW_SHAREABLE_FDS]);
/* The driver's handle of memory that has been brought, or is this session's own: one use more. */
CUresult gpw_shareable_open(struct gpw_session *s, struct gpw_shareable *one,
                            CUmemGenericAllocationHandle *memory);
/* One use less. After the last one, it goes, and what it is charged, unless others have it. */
void gpw_shareable_let_go(struct gpw_session *s, struct gpw_shareable *one);
/* Of an event or a pool: it has been opened, and the next time is asked for again. */
void gpw_shareable_drop(struct gpw_session *s, struct gpw_shareable *one);

/* Now and then: be charged for what its owner has left, give back what nobody has any more. */
void gpw_shareables_tick(struct gpw_session *s);

/* For the control thread: say what is behind a token, to a connection. */
void gpw_shareable_tell(struct gpw_session *s, const char *token, int connection);

#endif
