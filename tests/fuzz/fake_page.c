#include "fake_page.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire.h"

#define PAGES 4u
#define FIRST_ID (UINT64_C(1) << 40) /* none of the transport's own */

static struct {
    void *client;
    uint64_t *server;
    size_t size;
} pages[PAGES];
static unsigned count;

static void *map(int file, size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at == MAP_FAILED ? NULL : at;
}

int fake_page_share(const void *hint, size_t size, struct gp_share *out)
{
    bool right = size == GP_EVENT_PAGE_ALL || size == GP_EVENT_PAGE_BYTES ||
                 size == GP_COMPLETION_BYTES;
    if (hint || !right || count == PAGES)
        return -EINVAL;
    int file = memfd_create("fuzz-page", MFD_CLOEXEC);
    if (file < 0)
        return -errno;
    pages[count].size = size;
    if (ftruncate(file, (off_t)size) == 0) {
        pages[count].client = map(file, size);
        pages[count].server = map(file, size);
    }
    close(file);
    if (!pages[count].client || !pages[count].server)
        return -ENOMEM;
    *out = (struct gp_share){.addr = pages[count].client, .size = size, .id = FIRST_ID + count};
    count++;
    return 0;
}

bool fake_page_unshare(struct gp_share *share)
{
    if (share->id < FIRST_ID || share->id - FIRST_ID >= count)
        return false;
    munmap(share->addr, share->size);
    share->addr = NULL;
    return true;
}

void fake_page_write(uint64_t id, uint64_t place, uint64_t number)
{
    if (id >= FIRST_ID && id - FIRST_ID < count &&
        place < pages[id - FIRST_ID].size / sizeof number)
        __atomic_store_n(&pages[id - FIRST_ID].server[place], number, __ATOMIC_RELEASE);
}
