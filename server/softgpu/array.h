/* CUDA arrays: their bytes lie row behind row in memory of the device, without gaps, or in pages
 * that are mapped later. */
#ifndef SG_ARRAY_H
#define SG_ARRAY_H

#include "softgpu.h" /* before whatever includes cuda.h, whose functions it exports */

#include "array_extent.h"
#include "tiles.h"

/* What maps memory later. */
#define SG_MAPPED_LATER ((unsigned)(CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))

struct CUarray_st {
    CUarray next; /* in the context */
    CUcontext context;
    CUmipmappedArray mipmap; /* it is a level of; NULL: an array of its own */
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct gp_array_extent extent;
    uint64_t data;              /* where its bytes are, if it has no backing */
    struct sg_backing *backing; /* the mipmapped array's, of a level */
    struct sg_tiles tiles;      /* of a backing */
};
#define SG_LEVELS_MAX 18u /* of 131072 elements */
struct CUmipmappedArray_st {
    CUmipmappedArray next; /* in the context */
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sg_backing *backing; /* NULL: each level has its memory */
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
CUDA_ARRAY3D_DESCRIPTOR sg_level_of(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned level);

/* --- memory that is mapped later (sparse.c) --- */

/* Whether an array may be mapped later. */
bool sg_backing_fits(const CUDA_ARRAY3D_DESCRIPTOR *d);
/* Nothing is mapped yet. `levels`: of a mipmapped array, 0 for an array; `tiles` has room for each
 * level. sg.lock is held. */
CUresult sg_backing_make(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, struct sg_tiles *tiles,
                         struct sg_backing **out);
void sg_backing_free(struct sg_backing *backing);

/* Memory for pages (vmm.c): `bytes` of it from `offset` on, where they are mapped. sg.lock is
 * held, also for the others. */
CUresult sg_physical_pages(CUmemGenericAllocationHandle handle, const struct sg_device *device,
                           uint64_t offset, uint64_t bytes, struct sg_physical **physical,
                           unsigned char **at);
struct sg_physical *sg_physical_ref(struct sg_physical *physical);
void sg_physical_unref(struct sg_physical *physical);
#define SG_PAGE (UINT64_C(64) << 10)

/* --- textures and surfaces (texture.c) --- */

/* What kernels know by a number: an object, or what a reference is bound to. */
struct sg_texture {
    struct sg_texture *next; /* in the context, or the launch */
    uint64_t number;
    bool surface;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC desc;
    CUDA_RESOURCE_VIEW_DESC view;
};
#define SG_TEXTURE_ALIGNMENT 512u /* of its address */
#define SG_TEXTURE_FLAGS                                                                           \
    (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |                     \
     CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP)

void sg_textures_release(struct sg_texture **list);
/* Whether a texture of the device may read it. */
CUresult sg_resource_check(const CUDA_RESOURCE_DESC *d, const struct sg_device *device);
/* What kernels see of it; false: of no known format, or its array is gone. sg.lock is held. */
bool sg_texture_told(const struct sg_texture *texture, struct sg_image *to);
/* What kernels of the context see of an object (texture.c); false: there is none, or of no known
 * format. */
bool sg_image_told(void *context, uint64_t object, bool surface, struct sg_image *to);

/* --- references (texref.c) --- */

/* What those of a module are bound to, in front of a list. */
CUresult sg_references_hold(CUmodule module, struct sg_texture **held);
/* What the kernel of a launch (a struct sg_op) sees: as sg_image_told, references too. */
bool sg_image_told_launch(void *launch, uint64_t object, bool surface, struct sg_image *to);
/* Those of a module, and those that a program has made in a context. sg.lock is held. */
void sg_references_release(CUmodule module);
void sg_references_made_release(CUcontext context);

#endif
