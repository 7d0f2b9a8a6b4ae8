/* Whether what an image has may print. */
#ifndef GPW_IMAGE_PRINTS_H
#define GPW_IMAGE_PRINTS_H

#include <stdbool.h>

#include "module.h"

/* Kernels that print call CUDA's `vprintf`, by that name. True also of what is not understood. */
bool gpw_image_prints(struct gpw_session *s, const struct gpw_image *image);

#endif
