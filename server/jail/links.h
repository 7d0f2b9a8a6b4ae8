/*
 * The links of a lease on this host: for each interface that the operator has chosen a child of
 * it (macvlan, ipvlan), in the lease's network namespace, with the lease's own address and a
 * filter (peer_filter.h) that lets it reach the lease's peers alone. Who has no CAP_NET_ADMIN in
 * the namespace, as no worker has, can change none of it.
 */
#ifndef GPJ_LINKS_H
#define GPJ_LINKS_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "peer_filter.h"

#define GPJ_LINKS_MAX 8

enum gpj_link_kind { GPJ_MACVLAN, GPJ_IPVLAN };

struct gpj_link {
    char name[IFNAMSIZ]; /* of the host's interface, and of its child */
    enum gpj_link_kind kind;
    struct in6_addr own;
    struct in6_addr peers[GPJ_PEERS_MAX];
    unsigned peer_count;
};

struct gpj_links {
    struct gpj_link at[GPJ_LINKS_MAX];
    unsigned count;
};

/* `NAME KIND ADDRESS`, and for a link that is there `NAME ADDRESS`. NULL, or what is wrong; the
 * text is changed. */
const char *gpj_links_take(struct gpj_links *links, char *text);
const char *gpj_links_take_peer(struct gpj_links *links, char *text);
/* NULL, or what is wrong with them as a whole. */
const char *gpj_links_check(const struct gpj_links *links);

/* What is asked of the host's network namespace, before this process leaves it. */
struct gpj_links_host {
    int fd; /* to the host's rtnetlink; -1: none */
    int error;
    unsigned index[GPJ_LINKS_MAX]; /* 0: there is none of the name */
};

void gpj_links_begin(const struct gpj_links *links, struct gpj_links_host *host);
/* In the lease's network namespace: all of them, up and filtered, or none, and `why`: 0 or 1.
 * Closes what gpj_links_begin has opened. */
int gpj_links_make(const struct gpj_links *links, struct gpj_links_host *host, char *why,
                   size_t size);
/* In the lease's network namespace: whether all are there and up, which none is unfiltered. */
bool gpj_links_up(const struct gpj_links *links);

#endif
