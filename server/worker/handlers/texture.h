/* Texture and surface objects, by the driver's numbers, which a context has. */
#ifndef GPW_TEXTURE_H
#define GPW_TEXTURE_H

#include "session.h"

/* Whether it is the number of a live object of the current context: what the driver is given must
 * be one. INVALID_VALUE if not. */
CUresult gpw_texture_check(struct gpw_session *s, uint64_t number);
CUresult gpw_surface_check(struct gpw_session *s, uint64_t number);
/* The driver ends them with it. */
void gpw_textures_context_ended(struct gpw_session *s, CUcontext context);

#endif
