#include "seccomp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "filter.h"
#include "learn.h"

static int off(char *why, size_t size, const char *reason)
{
    snprintf(why, size, "%s", reason);
    return 1;
}

int gpj_seccomp_install(enum gpj_seccomp_mode mode, enum gpj_profile profile, int learn, char *why,
                        size_t size)
{
    enum gp_filter_driver driver = profile == GPJ_PROFILE_SOFT ? GP_FILTER_SOFT : GP_FILTER_CUDA;
    if (mode == GPJ_SECCOMP_OFF)
        return off(why, size, "--seccomp=off");
    if (mode == GPJ_SECCOMP_LEARN) {
        if (gp_learn_begin(learn) == 0)
            return off(why, size, "--learn-syscalls: calls are counted, and none is refused");
        snprintf(why, size, "calls cannot be counted: %s", strerror(errno));
        return 1;
    }
    if (gp_filter_install(driver, mode == GPJ_SECCOMP_LOG ? GP_FILTER_LOG : GP_FILTER_ENFORCE) !=
        0) {
        if (errno == ENOSYS)
            return off(why, size, "built without libseccomp; install libseccomp-dev and build");
        snprintf(why, size, "this kernel takes no filter (CONFIG_SECCOMP_FILTER): %s",
                 strerror(errno));
        return 1;
    }
    if (mode == GPJ_SECCOMP_LOG)
        return off(why, size, "--seccomp=log: what would be refused is in the kernel's log only");
    return 0;
}
