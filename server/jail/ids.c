#include "ids.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* User 0 is nobody special, now and after every exec, and that cannot be undone. */
#define BITS                                                                                       \
    (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |                               \
     SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |       \
     SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

static int caps_set_none(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    return (int)syscall(SYS_capset, &head, none);
}

static bool bounding_empty(void)
{
    for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
        if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0)
            return false;
    /* those of a newer kernel than the one that this was built for */
    for (int cap = CAP_LAST_CAP + 1; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0)
            return false;
    return true;
}

/* With the right to: what bounds all later programs. */
static bool bounds_set(void)
{
    return bounding_empty() && prctl(PR_SET_SECUREBITS, BITS, 0, 0, 0) == 0;
}

static int none_left(bool bounded, char *why, size_t size)
{
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (caps_set_none() != 0) {
        snprintf(why, size, "they cannot be given up: %s", strerror(errno));
        return 1;
    }
    if (!bounded && geteuid() == 0) {
        snprintf(why, size, "user 0 without CAP_SETPCAP cannot bound what it executes");
        return 1;
    }
    return 0; /* another user without any gets none by an exec, with no_new_privs */
}

int gpj_capabilities_drop(char *why, size_t size)
{
    return none_left(bounds_set(), why, size);
}

static void uid_apply(const struct gpj_description *d)
{
    if (!d->has_uid) {
        gpj_layer_off(GPJ_UID, "%s", d->off[GPJ_UID] ? d->off[GPJ_UID] : "none was given");
        return;
    }
    /* all three of each, so that none is left to go back to */
    if (setgroups(0, NULL) != 0 || setresgid(d->gid, d->gid, d->gid) != 0 ||
        setresuid(d->uid, d->uid, d->uid) != 0)
        gpj_fail("the worker cannot become user %u: %s", d->uid, strerror(errno));
    gpj_layer_on(GPJ_UID);
}

void gpj_ids_apply(const struct gpj_description *d)
{
    char why[160];
    bool bounded = bounds_set();
    uid_apply(d);
    if (none_left(bounded, why, sizeof why) == 0)
        gpj_layer_on(GPJ_CAPABILITIES);
    else
        gpj_layer_off(GPJ_CAPABILITIES, "%s", why);
    /* After the change of user, which would clear it; an exec that gains rights would, too, but
     * none can. It is told of the end of the thread that started it, the server's first. A server
     * that has ended before does not read what is said next, and that ends this process. */
    if (d->with_server && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        gpj_fail("the worker cannot be made to end with its server: %s", strerror(errno));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        gpj_layer_on(GPJ_NO_NEW_PRIVS);
    else
        gpj_layer_off(GPJ_NO_NEW_PRIVS, "%s", strerror(errno));
}
