#include "image_bytes.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image_store.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; before it files are read */
#endif

void gpw_image_bytes_free(struct gpw_image *image)
{
    if (image->mapped)
        munmap(image->bytes, (size_t)image->total + 1);
    else
        free(image->bytes);
    image->bytes = NULL;
    image->mapped = false;
}

static bool map(struct gpw_image *image, int protection, int how, int file)
{
    void *at = mmap(NULL, (size_t)image->total + 1, protection, how, file, 0);
    image->mapped = at != MAP_FAILED;
    image->bytes = image->mapped ? at : NULL;
    return image->mapped;
}

static bool in_heap(struct gpw_image *image)
{
    image->bytes = malloc((size_t)image->total + 1);
    if (image->bytes)
        image->bytes[image->total] = 0;
    return image->bytes != NULL;
}

bool gpw_image_bytes_new(const struct gpw_session *s, struct gpw_image *image)
{
    size_t size = (size_t)image->total + 1; /* the NUL is the file's own, which begins as zeros */
    image->file = gpw_image_store_wants(s, image->total) ? gpw_image_store_file(size) : -1;
    if (image->file >= 0 && map(image, PROT_READ | PROT_WRITE, MAP_SHARED, image->file))
        return true;
    if (image->file >= 0)
        close(image->file);
    image->file = -1;
    return in_heap(image);
}

/* A copy of 12 MB into memory that is new takes 6 ms, which nothing else can be done beside. All
 * pages are there when this returns: so a disk that does not read is found out here, by an answer
 * instead of a signal. Nobody makes a kept file shorter (image_store.py). */
static bool from_cache(struct gpw_image *image, int file)
{
    if (image->total % (uint64_t)sysconf(_SC_PAGESIZE) == 0 || /* the NUL would be behind it */
        !map(image, PROT_READ, MAP_PRIVATE, file))
        return false;
    if (madvise(image->bytes, (size_t)image->total + 1, MADV_POPULATE_READ) == 0 &&
        image->bytes[image->total] == 0)
        return true;
    gpw_image_bytes_free(image);
    return false;
}

static bool by_reading(struct gpw_image *image, int file)
{
    uint64_t at = 0;
    ssize_t n = 1;
    if (!in_heap(image))
        return false;
    for (; n > 0 && at < image->total; at += n > 0 ? (uint64_t)n : 0)
        n = pread(file, image->bytes + at, (size_t)(image->total - at), (off_t)at);
    if (at == image->total)
        return true;
    gpw_image_bytes_free(image); /* it was cut short, or the disk does not read */
    return false;
}

bool gpw_image_bytes_stored(struct gpw_image *image, int file)
{
    image->file = -1;
    image->stored = true;
    image->received = image->total;
    return from_cache(image, file) || by_reading(image, file);
}
