/*
 * What may pass a link of a lease: packets between its own address and those of its peers, and
 * the neighbour solicitations (RFC 4861) by which these find each other. All else is dropped,
 * both ways; of the rest of IPv6, of other protocols and of cut packets nothing passes.
 *
 * Routes alone would not hold: whoever binds a socket to the link sends past them (of IPv4 to
 * anybody on it, SO_BINDTODEVICE), and IPV6_FREEBIND lets anybody send as somebody else.
 */
#ifndef GPJ_PEER_FILTER_H
#define GPJ_PEER_FILTER_H

#include <linux/filter.h>
#include <netinet/in.h>
#include <stdbool.h>

#define GPJ_PEERS_MAX 64
#define GPJ_FILTER_MAX 1536 /* enough for as many peers, twice */

struct gpj_filter {
    struct sock_filter at[GPJ_FILTER_MAX];
    unsigned short count;
};

/* For packets that come in, or go out; what it returns is TC_ACT_OK or TC_ACT_SHOT. */
void gpj_peer_filter_make(struct gpj_filter *f, bool in, const struct in6_addr *own,
                          const struct in6_addr *peers, unsigned peer_count);

#endif
