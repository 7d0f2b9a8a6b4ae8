/*
 * What the worker has to know of an image's bytes: whether they are what their hash says, and
 * whether some kernel may print. Both read all of a long image, which takes as long as the driver
 * takes to load it, so a thread for each does it beside the driver.
 */
#ifndef GPW_IMAGE_LOOK_H
#define GPW_IMAGE_LOOK_H

#include <pthread.h>
#include <stdbool.h>

#include "module.h"

struct gpw_image_look {
    struct gpw_session *session;
    const struct gpw_image *image;
    bool is_genuine, prints;          /* once it has ended; `prints` where that was asked */
    bool names_beside, prints_beside; /* the thread does it */
    pthread_t names_thread, prints_thread;
};

/* The image stays as it is until the end. A short one is looked at here and now. */
void gpw_image_look_begin(struct gpw_image_look *look, struct gpw_session *s,
                          const struct gpw_image *image, bool asks_prints);
void gpw_image_look_end(struct gpw_image_look *look);

#endif
