/* Streams and events as the client knows them, and stream capture. */
#ifndef GPC_STREAM_H
#define GPC_STREAM_H

#include <cuda.h>
#include <stdbool.h>

/* The client's record of a stream. */
struct gpc_stream {
    CUcontext context;
    unsigned flags;
    int priority;
    unsigned long long id; /* of cuStreamGetId */
};

/* Forget the streams and events of a context that is no more. */
void gpc_stream_context_ended(CUcontext context);
/* The context of a stream that the application made, NULL for a default one. */
CUcontext gpc_stream_context(CUstream stream);
/* A stable value per stream (0, 1, 2 and real ones), 0 if there is no such stream. */
unsigned long long gpc_stream_identity(CUcontext context, CUstream stream, int per_thread);

struct gpc_route;
/* Whether work that is put there now comes behind that stream's own alone, which an end of it tells:
 * others do not keep it waiting. */
bool gpc_stream_is_independent(CUstream stream, uint64_t wire);
/* Whether all work that there can be comes behind what is in the route's stream: it is the legacy one
 * of the only context in which anything was done, the program has none that does not wait for that, and
 * no other process shares memory. */
bool gpc_stream_is_alone(const struct gpc_route *on);
/* As a program's synchronize: until all of it is over, or, where that is known to be copies that are
 * taken over, until what follows is sure to come behind them. */
CUresult gpc_stream_wait(struct gpc_route *on, CUstream stream);
/* What follows, from any thread, finds this stream idle: that is waited for over there. */
CUresult gpc_stream_fence(const struct gpc_route *on, CUstream stream);

#endif
