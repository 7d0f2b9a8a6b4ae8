#include "kept_images.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "draw.h"
#include "image_name.h"
#include "transport/hex.h"

enum how { SOUND, DAMAGED, CUT, NO_FILE };

static char folder[] = "/tmp/gpupool-fuzz-XXXXXX";
static char names[DRAW_IMAGES][64 + 1];
static pid_t owner;

/* The path of an image; in memory of this function's. */
static const char *path_of(unsigned number)
{
    static char path[sizeof folder + sizeof names[0] + 1];
    snprintf(path, sizeof path, "%s/%s", folder, names[number]);
    return path;
}

static void remove_all(void)
{
    for (unsigned i = 0; i < DRAW_IMAGES && getpid() == owner; i++)
        remove(path_of(i));
    if (getpid() == owner)
        rmdir(folder);
}

static bool keep(unsigned number, enum how how)
{
    static char copy[GP_CHUNK_MAX];
    uint32_t size;
    unsigned char hash[32];
    const char *image = draw_image(number, &size);
    gp_image_name_of(image, size, hash);
    gp_hex_show(hash, sizeof hash, names[number]);
    if (how == NO_FILE)
        return mkfifo(path_of(number), 0600) == 0;
    memcpy(copy, image, size);
    if (how == DAMAGED)
        copy[size / 2] ^= 1;
    if (how == CUT)
        size /= 2;
    int file = open(path_of(number), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool written = file >= 0 && write(file, copy, size) == (ssize_t)size;
    if (file >= 0)
        close(file);
    return written;
}

const char *kept_images_make(void)
{
    static const enum how hows[DRAW_IMAGES] = {SOUND, DAMAGED, CUT, NO_FILE};
    if (!mkdtemp(folder))
        return NULL;
    owner = getpid();
    atexit(remove_all);
    for (unsigned i = 0; i < DRAW_IMAGES; i++)
        if (!keep(i, hows[i]))
            return NULL;
    return folder;
}
