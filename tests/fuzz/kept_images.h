/*
 * A folder of images as a server keeps them for a tenant: a sound one, one that is damaged, one that
 * is no code, and what is no file. The drawn images are under their own hashes (draw_image).
 */
#ifndef FUZZ_KEPT_IMAGES_H
#define FUZZ_KEPT_IMAGES_H

/* Its path; it goes when this process ends. NULL: it cannot be made. */
const char *kept_images_make(void);

#endif
