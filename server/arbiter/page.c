#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory_file.h"

_Static_assert(sizeof(struct gp_page) <= GP_PAGE_BYTES, "a page is one page");

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int gp_page_make(int *page_fd, int *bell_fd)
{
    int page = memfd_create("gpupool-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (page < 0 || bell < 0 || ftruncate(page, GP_PAGE_BYTES) != 0 ||
        fcntl(page, F_ADD_SEALS, SEALS) != 0) {
        int r = -errno;
        if (page >= 0)
            close(page);
        if (bell >= 0)
            close(bell);
        return r;
    }
    *page_fd = page;
    *bell_fd = bell;
    return 0;
}

int gp_page_map(int page_fd, struct gp_page **page)
{
    struct stat info;
    if (!gp_memory_file_sealed(page_fd, SEALS) || fstat(page_fd, &info) != 0 ||
        info.st_size != GP_PAGE_BYTES)
        return -EPROTO;
    void *at = mmap(NULL, GP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    *page = at;
    return 0;
}

void gp_page_unmap(struct gp_page *page)
{
    munmap(page, GP_PAGE_BYTES);
}
