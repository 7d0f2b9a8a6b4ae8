/*
 * What a batch of copies asks for, checked as CUDA checks it. Client and soft GPU ask here, so
 * that both refuse the same.
 */
#ifndef GP_COPY_BATCH_H
#define GP_COPY_BATCH_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lines from address to address, and what is said of them: attrs[k] from copy first[k] on. */
struct gp_copy_lines {
    const CUdeviceptr *dst, *src;
    const size_t *bytes;
    size_t count;
    const CUmemcpyAttributes *attrs;
    const size_t *first;
    size_t attr_count;
};

/* Whether the lists are there, and each copy has attributes that mean something. */
bool gp_copy_lines_hold(const struct gp_copy_lines *lines);
/* When the source of a copy is read. `*at` is the attributes' index of an earlier one, or 0. */
CUmemcpySrcAccessOrder gp_copy_lines_order(const struct gp_copy_lines *lines, size_t copy,
                                           size_t *at);

/* One copy as cuMemcpy3DAsync takes it. `src_element` and `dst_element` are the bytes of an
 * array's element, 0: not known. False: CUDA would say CUDA_ERROR_INVALID_VALUE. */
bool gp_copy_box_make(const CUDA_MEMCPY3D_BATCH_OP *op, uint64_t src_element, uint64_t dst_element,
                      CUDA_MEMCPY3D *box);

#endif
