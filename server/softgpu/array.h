/* CUDA arrays: their bytes lie row behind row in memory of the device, without gaps. */
#ifndef SG_ARRAY_H
#define SG_ARRAY_H

#include "softgpu.h" /* before whatever includes cuda.h, whose functions it exports */

#include "array_extent.h"

struct CUarray_st {
    CUarray next; /* in the context */
    CUcontext context;
    CUmipmappedArray mipmap; /* it is a level of; NULL: an array of its own */
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct gp_array_extent extent;
    uint64_t data; /* where its bytes are */
};
#define SG_LEVELS_MAX 18u /* of 131072 elements */
struct CUmipmappedArray_st {
    CUmipmappedArray next; /* in the context */
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    unsigned count;
    CUarray levels[SG_LEVELS_MAX];
};

/* INVALID_HANDLE for what is no live array. sg.lock is held. */
CUresult sg_array_get(CUarray handle, CUarray *out);
CUresult sg_mipmap_get(CUmipmappedArray handle, CUmipmappedArray *out);
/* Bytes of one row and of one slice. */
static inline uint64_t sg_array_slice(const struct CUarray_st *a)
{
    return a->extent.width * a->extent.height;
}
/* The context is ending. sg.lock is held. */
void sg_arrays_release(CUcontext context);
void sg_textures_release(CUcontext context); /* texture.c */
/* What kernels of the context see of an object (texture.c); false: there is none, or of no known
 * format. */
bool sg_image_told(void *context, uint64_t object, bool surface, struct sg_image *to);

#endif
