/* CUDA arrays as ends of copies. The driver knows how large each is. */
#ifndef GPW_ARRAY_H
#define GPW_ARRAY_H

#include "gp_messages.h"
#include "session.h"
#include "span.h"

/* What a message says of an array's bytes, as a copy from or to packed host memory, whose address
 * is left out: false if it is not so many bytes, or they do not lie in the array. */
bool gpw_array_from_host(struct gpw_session *s, CUarray array, const struct gp_array_box *at,
                         uint32_t bytes, CUDA_MEMCPY3D *copy);
bool gpw_array_to_host(struct gpw_session *s, CUarray array, const struct gp_array_box *at,
                       uint32_t bytes, CUDA_MEMCPY3D *copy);
/* An end of a copy whose width, height and depth are said: false if it is not in the array. */
bool gpw_array_take_src(struct gpw_session *s, CUarray array, struct gp_span_end *at,
                        CUDA_MEMCPY3D *copy);
bool gpw_array_take_dst(struct gpw_session *s, CUarray array, struct gp_span_end *at,
                        CUDA_MEMCPY3D *copy);

#endif
