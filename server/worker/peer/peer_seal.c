#include "peer_seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "wire/hmac.h"

#define TIME_DIGITS 16
#define MAC_DIGITS 64
#define SHOWN_MOST 200

static void mac_of(const uint8_t key[GPW_PEER_KEY], const uint8_t secret[GPW_PEER_SECRET],
                   const char time[TIME_DIGITS], const char *url, char hex[MAC_DIGITS + 1])
{
    struct {
        char label[24];
        uint8_t secret[GPW_PEER_SECRET];
        char time[TIME_DIGITS];
    } head = {.label = "gpupool peer address"};
    uint8_t mac[MAC_DIGITS / 2];
    memcpy(head.secret, secret, sizeof head.secret);
    memcpy(head.time, time, sizeof head.time);
    gp_hmac(key, GPW_PEER_KEY, &head, sizeof head, url, strlen(url), mac);
    for (size_t i = 0; i < sizeof mac; i++)
        snprintf(hex + 2 * i, 3, "%02x", mac[i]);
}

bool gpw_peer_seal(const uint8_t key[GPW_PEER_KEY], const uint8_t secret[GPW_PEER_SECRET],
                   int64_t now, const char *url, char *out, size_t size)
{
    char time[TIME_DIGITS + 1], mac[MAC_DIGITS + 1];
    snprintf(time, sizeof time, "%016" PRIx64, (uint64_t)now);
    mac_of(key, secret, time, url, mac);
    int n = snprintf(out, size, "%s#%s.%s", url, time, mac);
    return !strchr(url, '#') && n > 0 && (size_t)n < size;
}

static bool same(const char *a, const char *b, size_t size)
{
    unsigned difference = 0;
    for (size_t i = 0; i < size; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

static bool fresh(const char time[TIME_DIGITS], int64_t now)
{
    char text[TIME_DIGITS + 1] = "";
    uint64_t then;
    memcpy(text, time, TIME_DIGITS);
    if (sscanf(text, "%16" SCNx64, &then) != 1)
        return false;
    uint64_t apart = then > (uint64_t)now ? then - (uint64_t)now : (uint64_t)now - then;
    return apart <= GPW_PEER_SEAL_SECONDS;
}

const char *gpw_peer_unseal(const uint8_t key[GPW_PEER_KEY], const uint8_t secret[GPW_PEER_SECRET],
                            int64_t now, char *sealed)
{
    char mac[MAC_DIGITS + 1];
    char *seal = strchr(sealed, '#');
    if (!seal)
        return "no worker has sealed it";
    *seal++ = '\0';
    if (strlen(seal) != TIME_DIGITS + 1 + MAC_DIGITS || seal[TIME_DIGITS] != '.')
        return "its seal is none";
    mac_of(key, secret, seal, sealed, mac);
    if (!same(mac, seal + TIME_DIGITS + 1, MAC_DIGITS))
        return "its seal is of another key; the two servers need the same peer_key";
    return fresh(seal, now) ? NULL : "its seal is too old; are the two hosts' clocks right?";
}

/* --- where to ----------------------------------------------------------------------- */

static const char *host_of(const char *url)
{
    static const char *const schemes[] = {"tls://", "plain://", "tcp://"};
    for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strncmp(url, schemes[i], strlen(schemes[i])) == 0)
            return url + strlen(schemes[i]);
    return NULL;
}

static bool begins(const char *host, const char *const *with)
{
    for (; *with; with++)
        if (strncasecmp(host, *with, strlen(*with)) == 0)
            return true;
    return false;
}

bool gpw_peer_is_loopback(const char *url)
{
    static const char *const own[] = {"127.", "localhost:", "[::1]", "[::ffff:127.", NULL};
    const char *host = host_of(url);
    return host && begins(host, own);
}

bool gpw_peer_may_go(const char *url, bool own_loopback)
{
    /* every host's own, of the link, or of nobody */
    static const char *const never[] = {
        "169.254.", "[fe8", "[fe9", "[fea",       "[feb", "[::ffff:169.254.",
        "0.",       "*",    "[::]", "[::ffff:0.", NULL};
    const char *host = host_of(url);
    if (!host || !strchr(host, ':'))
        return false;
    if (gpw_peer_is_loopback(url))
        return own_loopback;
    return !begins(host, never);
}

int gpw_peer_shown(const char *url)
{
    size_t shown = strcspn(url, "?");
    return shown < SHOWN_MOST ? (int)shown : SHOWN_MOST;
}
