#include "image_look.h"

#include <string.h>

#include "fatbin.h"
#include "image_prints.h"
#include "own_thread.h"
#include "sha256.h"

static void *see(void *arg)
{
    struct gpw_image_look *look = arg;
    unsigned char real[32];
    gp_sha256(look->image->bytes, look->image->total, real);
    look->is_genuine = memcmp(real, look->image->hash, sizeof real) == 0;
    look->prints = look->asks_prints && gpw_image_prints(look->session, look->image);
    return NULL;
}

void gpw_image_look_begin(struct gpw_image_look *look, struct gpw_session *s,
                          const struct gpw_image *image, bool asks_prints)
{
    *look = (struct gpw_image_look){.session = s, .image = image, .asks_prints = asks_prints};
    /* a thread takes longer to start than a short image to read */
    look->beside = image->total > GP_IMAGE_EAGER &&
                   gp_thread_create(&look->thread, "image", NULL, see, look) == 0;
    if (!look->beside)
        see(look);
}

void gpw_image_look_end(struct gpw_image_look *look)
{
    if (look->beside)
        pthread_join(look->thread, NULL);
    look->beside = false;
}
