/* The address that other ranks reach this one by: that of an interface, chosen as NCCL does. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

static bool read_address(const struct sockaddr *from, struct sn_address *out)
{
    struct sn_address a = {.family = from ? from->sa_family : 0};
    if (a.family == AF_INET) {
        memcpy(a.ip, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (a.family == AF_INET6) {
        const struct sockaddr_in6 *six = (const void *)from;
        if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) /* it means nothing on another host */
            return false;
        memcpy(a.ip, &six->sin6_addr, 16);
    } else {
        return false;
    }
    *out = a;
    return true;
}

static bool family_wanted(unsigned family)
{
    const char *wanted = getenv("NCCL_SOCKET_FAMILY");
    if (!wanted || !*wanted)
        return true;
    return family == (strcmp(wanted, "AF_INET6") == 0 ? AF_INET6 : AF_INET);
}

/* A list of names, or of what names begin with, between commas. */
static bool listed(const char *name, const char *list, bool exact)
{
    while (*list) {
        size_t length = strcspn(list, ",");
        if (length && strncmp(name, list, length) == 0 && (!exact || !name[length]))
            return true;
        list += length;
        list += *list == ',';
    }
    return false;
}

/* NCCL_SOCKET_IFNAME: "eth,ib" are beginnings, "=eth0" a name, "^docker" what not to take. */
static bool name_wanted(const char *name, const char *wanted)
{
    bool not_these = *wanted == '^';
    wanted += not_these;
    bool exact = *wanted == '=';
    return listed(name, wanted + exact, exact) != not_these;
}

/* How much it is wanted: 0 is not at all. */
static int preference(const struct ifaddrs *i, const char *wanted)
{
    if (!(i->ifa_flags & IFF_UP) || !i->ifa_addr || !family_wanted(i->ifa_addr->sa_family))
        return 0;
    if (wanted && *wanted)
        return name_wanted(i->ifa_name, wanted);
    if (i->ifa_flags & IFF_LOOPBACK)
        return 1;
    return strncmp(i->ifa_name, "docker", 6) == 0 ? 2 : 3;
}

bool sn_address_own(struct sn_address *out)
{
    const char *wanted = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all = NULL;
    int most = 0;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct sn_address address;
        int preferred = preference(i, wanted);
        if (preferred > most && read_address(i->ifa_addr, &address)) {
            most = preferred;
            *out = address;
        }
    }
    freeifaddrs(all);
    return most > 0;
}
