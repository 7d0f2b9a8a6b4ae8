/* Contexts: how they begin and end (context_life.c), each thread's stack (context_stack.c). */
#ifndef SG_CONTEXT_LIFE_H
#define SG_CONTEXT_LIFE_H

#include "softgpu.h" /* which includes this where its types are known */

struct sg_device;

struct CUctx_st {
    unsigned attached; /* uses beyond the first (cuCtxAttach) */
    CUcontext next;
    struct sg_device *device;
    uint64_t id;
    unsigned flags, api_version;
    bool primary;
    bool alive;          /* a primary context may be retained again after its end */
    volatile int cancel; /* tells running work to stop: the context is ending */
    CUstream legacy;     /* the default stream */
    CUstream entry;      /* waits for events that all streams wait for; NULL: there were none */
    CUstream streams;    /* all streams of the context, linked by next */
    CUmodule modules;
    CUarray arrays; /* levels of mipmapped ones among them */
    CUmipmappedArray mipmaps;
    struct sg_texture *textures;     /* and surfaces (texture.c) */
    struct sg_reference *references; /* that a program has made (texref.c) */
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    uint32_t peers; /* bit per device whose memory was enabled */
    /* A green context (green.c) is its device's primary one but for its streams; else NULL. */
    CUcontext green_of;
    unsigned first_sm, sm_count; /* what it has */
};
/* What has memory, modules and events. */
static inline CUcontext sg_context_root(CUcontext context)
{
    return context->green_of ? context->green_of : context;
}
/* Initialised, a current context, alive, without a sticky error: the primary one of a green
 * one. sg.lock is held. */
CUresult sg_context_current(CUcontext *out);
/* The current context or NULL, without checks. */
CUcontext sg_context_peek(void);
/* `context` or, when NULL, the current one; likewise the primary one of a green one. */
CUresult sg_context_of(CUcontext context, CUcontext *out);
/* The same, and a green one is itself. */
CUresult sg_context_exact(CUcontext context, CUcontext *out);
/* green.c, with sg.lock held. The device's primary context ends, and with it its green ones. */
void sg_greens_end(CUcontext primary);
/* What of the current context is green, NULL if nothing is. */
CUcontext sg_green_current(void);
/* Whether the stream is one of this context, which may be green. */
struct CUstream_st;
bool sg_stream_in(const struct CUstream_st *stream, CUcontext context);
/* A new stream of a green context waits for what the context waits for. */
CUresult sg_green_enter(CUcontext green, CUstream stream);
CUresult sg_context_primary(struct sg_device *device, CUcontext *out); /* makes it if need be */
/* The calling thread's stack. pop: what was on top, NULL if nothing was. */
CUresult sg_context_push(CUcontext context);
CUcontext sg_context_pop(void);
CUresult sg_context_make(struct sg_device *device, unsigned flags, CUcontext *out);
/* Ends all work, then gives back everything the context owns. */
void sg_context_end(CUcontext context);

#endif
