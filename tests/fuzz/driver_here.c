/* The worker opens its driver by path: of this name it is the soft GPU that is linked in. */
#include <dlfcn.h>
#include <string.h>

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

void *__wrap_dlopen(const char *path, int flags)
{
    return __real_dlopen(path && strcmp(path, FUZZ_DRIVER) == 0 ? NULL : path, flags);
}
