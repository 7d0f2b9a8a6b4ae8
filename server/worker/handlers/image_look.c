#include "image_look.h"

#include <string.h>

#include "fatbin.h"
#include "image_name.h"
#include "image_prints.h"
#include "own_thread.h"

static void *see_name(void *arg)
{
    struct gpw_image_look *look = arg;
    const struct gpw_image *image = look->image;
    look->is_genuine = gp_image_is_named(image->bytes, image->total, image->hash);
    return NULL;
}

static void *see_prints(void *arg)
{
    struct gpw_image_look *look = arg;
    look->prints = gpw_image_prints(look->session, look->image);
    return NULL;
}

/* Whether a thread does it: it takes longer to start than a short image to read. */
static bool see_beside(struct gpw_image_look *look, pthread_t *thread, void *(*see)(void *))
{
    if (look->image->total > GP_IMAGE_EAGER &&
        gp_thread_create(thread, "image", NULL, see, look) == 0)
        return true;
    see(look);
    return false;
}

void gpw_image_look_begin(struct gpw_image_look *look, struct gpw_session *s,
                          const struct gpw_image *image, bool asks_prints)
{
    *look = (struct gpw_image_look){.session = s, .image = image};
    look->names_beside = see_beside(look, &look->names_thread, see_name);
    look->prints_beside = asks_prints && see_beside(look, &look->prints_thread, see_prints);
}

void gpw_image_look_end(struct gpw_image_look *look)
{
    if (look->names_beside)
        pthread_join(look->names_thread, NULL);
    if (look->prints_beside)
        pthread_join(look->prints_thread, NULL);
    look->names_beside = look->prints_beside = false;
}
