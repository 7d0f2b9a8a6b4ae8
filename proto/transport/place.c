#include "transport/place.h"

#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

/* 16 bytes that are equal for two of one place. A dual socket's view of an IPv4 address is
 * that address. */
static void place_of(const struct sockaddr_storage *a, uint8_t out[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (a->ss_family == AF_INET) {
        memcpy(out, mapped, sizeof mapped);
        memcpy(out + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
        return;
    }
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    memcpy(out, &six->sin6_addr, 16);
    if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
        memset(out + 8, 0, 8);
}

bool gp_same_place(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    uint8_t first[16], second[16];
    place_of(a, first);
    place_of(b, second);
    return memcmp(first, second, sizeof first) == 0;
}
