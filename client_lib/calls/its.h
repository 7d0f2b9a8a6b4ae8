/*
 * What the client has noted of the object that a call is about, for the generated stubs
 * (proto/gpgen/client_words.py): NULL and the error that CUDA gives, if there is none such.
 */
#ifndef GPC_ITS_H
#define GPC_ITS_H

#include "context.h"
#include "module.h"
#include "ranges.h"
#include "session.h"
#include "stream.h"

const struct gp_device_info *gpc_device_its(CUdevice device, CUresult *r);
/* NULL: the current one. */
const struct gpc_context *gpc_context_its(CUcontext context, CUresult *r);
/* The same of a green one. */
const struct gpc_context *gpc_green_its(CUgreenCtx green, CUresult *r);
/* Of a default stream, the record is made in `own`. */
const struct gpc_stream *gpc_stream_its(CUstream stream, struct gpc_stream *own, CUresult *r);
/* Device memory at an address, and pinned memory; likewise. */
const struct gpc_range *gpc_memory_its(CUdeviceptr address, struct gpc_range *own, CUresult *r);
const struct gpc_range *gpc_pinned_its(const void *p, struct gpc_range *own, CUresult *r);
/* A function, or a kernel by its number. */
struct gpc_kernel *gpc_kernel_its(CUfunction function, CUresult *r);

/* At most `most` bytes of `from`, as a text in `room` bytes. */
void gpc_give_text(char *to, size_t room, const char *from, size_t most);

#endif
