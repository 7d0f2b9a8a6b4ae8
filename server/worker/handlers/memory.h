/*
 * Device memory of a session: one address window per device, in which its
 * allocations lie, so that addresses are unique and none is a host address of the
 * client; the arena and the pinned buffers that client and worker share.
 */
#ifndef GPW_MEMORY_H
#define GPW_MEMORY_H

#include "session.h"

/* After cuInit, before any context. 0, or -1 with a log line. */
int gpw_memory_open(struct gpw_session *s);
/* Once, when the client has said where its devices' windows are to begin. */
CUresult gpw_memory_place(struct gpw_session *s, uint64_t base);
void gpw_memory_close(struct gpw_session *s);
/* The window of one of the session's devices; 0, 0 where there is none. */
void gpw_memory_window(struct gpw_session *s, uint32_t ordinal, uint64_t *begin, uint64_t *end);
/* Device bytes taken by this session's allocations. Any thread. */
uint64_t gpw_memory_bytes(const struct gpw_session *s);
/* The context is about to end: what was freed in it is given back. */
void gpw_memory_context_ended(struct gpw_session *s, CUcontext context);

/* Free when the work before is over. `keep`: the client hands it out again, and is told when it
 * may; `idle`: it may at once, because nothing is under way. */
CUresult gpw_memory_free(struct gpw_session *s, CUdeviceptr dptr, bool keep, bool idle);
/* Frees are numbered; those up to `number` that only wait for the GPU. */
uint64_t gpw_memory_last_free(const struct gpw_session *s);
bool gpw_memory_frees_under_way(struct gpw_session *s, uint64_t number);
/* Whether memory that was freed in a stream's order is still to be given back when we see that the
 * stream has come by. */
bool gpw_memory_frees_in_order(const struct gpw_session *s);
/* Whether who asks what is in use is put off until they are over, as CUDA's are when they return.
 * False at the last try: the GPU may wait for the client. */
bool gpw_memory_must_wait(struct gpw_session *s);
/* The same for a call, of which `tells` says whether it asks for that: GPW_AGAIN, or success. */
CUresult gpw_memory_freed(struct gpw_session *s, bool tells);

/* Whether a message may be handled now: the launch of a graph, which allocates at the same addresses
 * again, waits until what it had left is free, as it is when CUDA's cuMemFree returns. `held_ns`: for
 * how long it has waited. */
bool gpw_memory_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns);

/* Let one of the session's devices read and write what is and will be allocated on another. */
CUresult gpw_memory_share(struct gpw_session *s, uint32_t ordinal, uint32_t peer);
/* Whether [address, address + bytes) is device memory that this session may use. The current
 * device has access to it then, if there is a way between the two. */
bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Whether work on the GPU may be told to touch it: device memory, pinned buffers by their
 * device address, and memory of graphs. What else the process has is the worker's own. */
bool gpw_memory_reach(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* The same, or from GP_NOWHERE on. */
bool gpw_memory_aim(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Whether all of the range is for mappings of the client's own, and not for cuMemAlloc's. */
bool gpw_memory_is_clients(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* This process's address of a client's pinned buffer, NULL if the range is none. */
void *gpw_pinned_find(struct gpw_session *s, uint64_t address, uint64_t bytes);

/* Part of the arena, registered with the driver; NULL if it lies outside. */
void *gpw_arena_at(struct gpw_session *s, uint64_t offset, uint64_t bytes);
/* Record an event. With a number: before the stream comes to the record the GPU writes it into this
 * place of the page, so whoever knows that the event has passed finds it there. Where it cannot be
 * written, the page says before that it is closed. `told`: there is no page; when the record is over
 * that is said by its number, behind all that its work has brought, or at once that nobody will. */
CUresult gpw_event_record(struct gpw_session *s, CUevent event, CUstream stream, uint32_t place,
                          uint64_t number, bool told);
/* Open the page of polled events, or of waits that the GPU ends. NOT_SUPPORTED where a GPU of the
 * session does not write numbers of 64 bits. */
CUresult gpw_gpu_page_open(struct gpw_session *s, uint64_t share, uint64_t bytes, bool waits);
/* The GPU copies so many bytes to a place of the page of waits, and writes the number there, when the
 * stream comes to it; that only where it can and kernels print nothing. Then the answer is sent.
 * NOT_SUPPORTED: it cannot copy. */
struct gpw_answer_wait;
CUresult gpw_complete(struct gpw_session *s, struct gpw_answer_wait *answer, CUdeviceptr src,
                      CUstream stream, uint32_t bytes, uint32_t place, uint64_t number);
/* Likewise without an answer: where the GPU cannot, nothing is written, and who waits has to ask.
 * INVALID_VALUE: no such place, or more bytes than one has. */
CUresult gpw_signal(struct gpw_session *s, CUdeviceptr src, CUstream stream, uint32_t bytes,
                    uint32_t place, uint64_t number);
/* Say in the page of events that a kernel was launched which may print. */
void gpw_event_page_print(struct gpw_session *s);
/* The worker's address of a buffer for graphs, NULL if the range is none. */
void *gpw_captured_find(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Have such a buffer of so many bytes; 0: give it back, if there is one. */
CUresult gpw_captured_have(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Between such memory and a message. */
CUresult gpw_bytes_copy(struct gpw_session *s, void *to, const void *from, uint32_t bytes);

/* A pitched copy of these ends; NULL for one that is memory. */
CUresult gpw_copy_3d(struct gpw_session *s, const CUDA_MEMCPY3D *copy, CUarray dst, CUarray src,
                     CUstream stream);
/* Whether the current device has so many bytes left: OUT_OF_MEMORY, or GPW_AGAIN while memory is
 * being freed. */
CUresult gpw_memory_room(struct gpw_session *s, uint64_t bytes);

#endif
