/* The worker opens its driver and NCCL by path: of these names they are the soft ones that are linked
 * in, of which NCCL looks for the driver. */
#include <dlfcn.h>
#include <string.h>

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

void *__wrap_dlopen(const char *path, int flags)
{
    static const char *const here[] = {FUZZ_DRIVER, FUZZ_NCCL, "libgpupool_softgpu.so"};
    for (unsigned i = 0; i < sizeof here / sizeof here[0]; i++)
        if (path && strcmp(path, here[i]) == 0)
            path = NULL;
    return __real_dlopen(path, flags);
}
