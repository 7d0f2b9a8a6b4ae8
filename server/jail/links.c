#include "links.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rtnetlink.h"

/* Until a link has its parent's name: older kernels (6.1) look for a new one's name in the network
 * namespace that they are asked in, which has the parent. */
#define NEW_NAME "gpupool-new"

/* --- the description ------------------------------------------------------------- */

static bool plain_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length < IFNAMSIZ && strcmp(name, "lo") != 0 && name[0] != '.' &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "._-@")] == '\0';
}

/* One that belongs to one link, and not to every link or to none. */
static bool take_address(const char *text, struct in6_addr *out)
{
    return inet_pton(AF_INET6, text, out) == 1 && !IN6_IS_ADDR_MULTICAST(out) &&
           !IN6_IS_ADDR_LINKLOCAL(out) && !IN6_IS_ADDR_LOOPBACK(out) &&
           !IN6_IS_ADDR_UNSPECIFIED(out) && !IN6_IS_ADDR_V4MAPPED(out);
}

static struct gpj_link *find(struct gpj_links *links, const char *name)
{
    for (unsigned i = 0; i < links->count; i++)
        if (strcmp(links->at[i].name, name) == 0)
            return &links->at[i];
    return NULL;
}

const char *gpj_links_take(struct gpj_links *links, char *text)
{
    char *name = strsep(&text, " "), *kind = strsep(&text, " ");
    struct gpj_link link = {.kind = GPJ_MACVLAN};
    if (!kind || !text || !plain_name(name) || !take_address(text, &link.own))
        return "needs the name of an interface, a kind and an IPv6 address";
    if (strcmp(kind, "ipvlan") == 0)
        link.kind = GPJ_IPVLAN;
    else if (strcmp(kind, "macvlan") != 0)
        return "must be of the kind macvlan or ipvlan";
    if (find(links, name))
        return "comes twice";
    if (links->count == GPJ_LINKS_MAX)
        return "comes too often";
    memcpy(link.name, name, strlen(name) + 1);
    links->at[links->count++] = link;
    return NULL;
}

const char *gpj_links_take_peer(struct gpj_links *links, char *text)
{
    struct in6_addr address;
    char *name = strsep(&text, " ");
    struct gpj_link *link = find(links, name);
    if (!text || !take_address(text, &address))
        return "needs the name of an interface and an IPv6 address";
    if (!link)
        return "is for a link that does not come before it";
    if (link->peer_count == GPJ_PEERS_MAX)
        return "comes too often";
    link->peers[link->peer_count++] = address;
    return NULL;
}

const char *gpj_links_check(const struct gpj_links *links)
{
    for (unsigned i = 0; i < links->count; i++)
        if (links->at[i].peer_count == 0)
            return "the description has a 'link' without a 'peer'";
    return NULL;
}

/* --- the links ------------------------------------------------------------------- */

void gpj_links_begin(const struct gpj_links *links, struct gpj_links_host *host)
{
    *host = (struct gpj_links_host){.fd = -1};
    if (!links->count)
        return;
    host->fd = gpj_rtnetlink_open();
    host->error = host->fd < 0 ? errno : 0;
    for (unsigned i = 0; i < links->count; i++)
        host->index[i] = if_nametoindex(links->at[i].name);
}

/* Asked of the host, as the child's parent is there. Children of one interface do not reach each
 * other by it: they are of different leases. */
static int child_make(int host, const struct gpj_link *link, unsigned parent, int namespace)
{
    static struct gpj_message m;
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC};
    uint32_t macvlan_mode = MACVLAN_MODE_PRIVATE;
    uint16_t ipvlan_mode = IPVLAN_MODE_L2, ipvlan_flags = IPVLAN_F_PRIVATE;
    const char *kind = link->kind == GPJ_IPVLAN ? "ipvlan" : "macvlan";
    gpj_message_begin(&m, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &info, sizeof info);
    gpj_message_add(&m, IFLA_IFNAME, NEW_NAME, sizeof NEW_NAME);
    gpj_message_add(&m, IFLA_LINK, &parent, sizeof parent);
    gpj_message_add(&m, IFLA_NET_NS_FD, &namespace, sizeof namespace);
    size_t about = gpj_message_open(&m, IFLA_LINKINFO);
    gpj_message_add(&m, IFLA_INFO_KIND, kind, strlen(kind));
    size_t data = gpj_message_open(&m, IFLA_INFO_DATA);
    if (link->kind == GPJ_MACVLAN) {
        gpj_message_add(&m, IFLA_MACVLAN_MODE, &macvlan_mode, sizeof macvlan_mode);
    } else {
        gpj_message_add(&m, IFLA_IPVLAN_MODE, &ipvlan_mode, sizeof ipvlan_mode);
        gpj_message_add(&m, IFLA_IPVLAN_FLAGS, &ipvlan_flags, sizeof ipvlan_flags);
    }
    gpj_message_close(&m, data);
    gpj_message_close(&m, about);
    return gpj_rtnetlink_ask(host, &m);
}

static int classifiers_allow(int fd, unsigned index)
{
    static struct gpj_message m;
    struct tcmsg about = {.tcm_family = AF_UNSPEC,
                          .tcm_ifindex = (int)index,
                          .tcm_handle = TC_H_MAKE(TC_H_CLSACT, 0),
                          .tcm_parent = TC_H_CLSACT};
    gpj_message_begin(&m, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &about, sizeof about);
    gpj_message_add(&m, TCA_KIND, "clsact", sizeof "clsact");
    return gpj_rtnetlink_ask(fd, &m);
}

static int filter_attach(int fd, unsigned index, bool in, const struct gpj_link *link)
{
    static struct gpj_message m;
    static struct gpj_filter f;
    struct tcmsg about = {
        .tcm_family = AF_UNSPEC,
        .tcm_ifindex = (int)index,
        .tcm_parent = TC_H_MAKE(TC_H_CLSACT, in ? TC_H_MIN_INGRESS : TC_H_MIN_EGRESS),
        .tcm_info = TC_H_MAKE(1U << 16, htons(ETH_P_ALL))};
    uint32_t flags = TCA_BPF_FLAG_ACT_DIRECT;
    gpj_peer_filter_make(&f, in, &link->own, link->peers, link->peer_count);
    gpj_message_begin(&m, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &about, sizeof about);
    gpj_message_add(&m, TCA_KIND, "bpf", sizeof "bpf");
    size_t options = gpj_message_open(&m, TCA_OPTIONS);
    gpj_message_add(&m, TCA_BPF_OPS_LEN, &f.count, sizeof f.count);
    gpj_message_add(&m, TCA_BPF_OPS, f.at, f.count * sizeof f.at[0]);
    gpj_message_add(&m, TCA_BPF_FLAGS, &flags, sizeof flags);
    gpj_message_close(&m, options);
    return gpj_rtnetlink_ask(fd, &m);
}

/* No address but the lease's own, which a link would give itself. */
static int addresses_forbid(int fd, unsigned index)
{
    static struct gpj_message m;
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC, .ifi_index = (int)index};
    uint8_t none = IN6_ADDR_GEN_MODE_NONE;
    gpj_message_begin(&m, RTM_NEWLINK, 0, &info, sizeof info);
    size_t families = gpj_message_open(&m, IFLA_AF_SPEC);
    size_t family = gpj_message_open(&m, AF_INET6);
    gpj_message_add(&m, IFLA_INET6_ADDR_GEN_MODE, &none, sizeof none);
    gpj_message_close(&m, family);
    gpj_message_close(&m, families);
    return gpj_rtnetlink_ask(fd, &m);
}

static int name_set(int fd, unsigned index, const char *name)
{
    static struct gpj_message m;
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC, .ifi_index = (int)index};
    gpj_message_begin(&m, RTM_NEWLINK, 0, &info, sizeof info);
    gpj_message_add(&m, IFLA_IFNAME, name, strlen(name) + 1);
    return gpj_rtnetlink_ask(fd, &m);
}

static int link_up(int fd, unsigned index)
{
    static struct gpj_message m;
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC,
                             .ifi_index = (int)index,
                             .ifi_flags = IFF_UP,
                             .ifi_change = IFF_UP};
    gpj_message_begin(&m, RTM_NEWLINK, 0, &info, sizeof info);
    return gpj_rtnetlink_ask(fd, &m);
}

/* It is nobody else's: there is nobody to ask whether it is. */
static int address_add(int fd, unsigned index, const struct in6_addr *address)
{
    static struct gpj_message m;
    struct ifaddrmsg about = {.ifa_family = AF_INET6, .ifa_prefixlen = 128, .ifa_index = index};
    uint32_t flags = IFA_F_NODAD | IFA_F_NOPREFIXROUTE;
    gpj_message_begin(&m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &about, sizeof about);
    gpj_message_add(&m, IFA_LOCAL, address, sizeof *address);
    gpj_message_add(&m, IFA_ADDRESS, address, sizeof *address);
    gpj_message_add(&m, IFA_FLAGS, &flags, sizeof flags);
    return gpj_rtnetlink_ask(fd, &m);
}

/* There is no other route: what is for nobody of the lease's is refused at once. */
static int route_add(int fd, unsigned index, const struct in6_addr *peer)
{
    static struct gpj_message m;
    struct rtmsg about = {.rtm_family = AF_INET6,
                          .rtm_dst_len = 128,
                          .rtm_table = RT_TABLE_MAIN,
                          .rtm_protocol = RTPROT_STATIC,
                          .rtm_scope = RT_SCOPE_UNIVERSE,
                          .rtm_type = RTN_UNICAST};
    gpj_message_begin(&m, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &about, sizeof about);
    gpj_message_add(&m, RTA_DST, peer, sizeof *peer);
    gpj_message_add(&m, RTA_OIF, &index, sizeof index);
    return gpj_rtnetlink_ask(fd, &m);
}

static int link_remove(int fd, unsigned index)
{
    static struct gpj_message m;
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC, .ifi_index = (int)index};
    gpj_message_begin(&m, RTM_DELLINK, 0, &info, sizeof info);
    return gpj_rtnetlink_ask(fd, &m);
}

/* A link that is down passes nothing: it comes up with its filters. What failed, or NULL. */
static const char *link_set(int fd, unsigned index, const struct gpj_link *link, int *error)
{
    if ((*error = classifiers_allow(fd, index)) != 0)
        return "takes no filters (CONFIG_NET_SCH_INGRESS)";
    if ((*error = filter_attach(fd, index, true, link)) != 0 ||
        (*error = filter_attach(fd, index, false, link)) != 0)
        return "cannot be filtered (CONFIG_NET_CLS_BPF)";
    if ((*error = addresses_forbid(fd, index)) != 0 || (*error = link_up(fd, index)) != 0)
        return "cannot be brought up";
    if ((*error = address_add(fd, index, &link->own)) != 0)
        return "takes no IPv6 address";
    for (unsigned i = 0; i < link->peer_count; i++)
        if ((*error = route_add(fd, index, &link->peers[i])) != 0)
            return "takes no route to a peer";
    return NULL;
}

static const char *link_make(const struct gpj_links_host *host, int fd, int namespace, unsigned i,
                             const struct gpj_link *link, int *error)
{
    *error = ENODEV;
    if (!host->index[i])
        return "is none of this host's";
    if ((*error = child_make(host->fd, link, host->index[i], namespace)) != 0)
        return link->kind == GPJ_IPVLAN ? "cannot have a child (CONFIG_IPVLAN)"
                                        : "cannot have a child (CONFIG_MACVLAN)";
    unsigned index = if_nametoindex(NEW_NAME);
    *error = ENODEV;
    if (index && (*error = name_set(fd, index, link->name)) != 0)
        return "cannot have a child of its name";
    return index ? link_set(fd, index, link, error) : "has no child here";
}

static void all_remove(const struct gpj_links *links, int fd)
{
    for (unsigned i = 0; i <= links->count; i++) {
        unsigned index = if_nametoindex(i < links->count ? links->at[i].name : NEW_NAME);
        if (index)
            link_remove(fd, index);
    }
}

int gpj_links_make(const struct gpj_links *links, struct gpj_links_host *host, char *why,
                   size_t size)
{
    int fd = gpj_rtnetlink_open(), namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    const char *wrong = NULL;
    if (host->fd < 0 || fd < 0 || namespace < 0) {
        snprintf(why, size, "the kernel's links cannot be asked for: %s",
                 strerror(host->fd < 0 ? host->error : errno));
        wrong = why;
    }
    for (unsigned i = 0; i < links->count && !wrong; i++) {
        int error;
        wrong = link_make(host, fd, namespace, i, &links->at[i], &error);
        if (wrong)
            snprintf(why, size, "the interface %s %s: %s", links->at[i].name, wrong,
                     strerror(error));
    }
    if (wrong && fd >= 0)
        all_remove(links, fd);
    if (fd >= 0)
        close(fd);
    if (namespace >= 0)
        close(namespace);
    if (host->fd >= 0)
        close(host->fd);
    host->fd = -1;
    return wrong != NULL;
}

bool gpj_links_up(const struct gpj_links *links)
{
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0;
    for (unsigned i = 0; i < links->count && up; i++) {
        struct ifreq asked = {.ifr_flags = 0};
        memcpy(asked.ifr_name, links->at[i].name, sizeof asked.ifr_name);
        up = ioctl(fd, SIOCGIFFLAGS, &asked) == 0 && (asked.ifr_flags & IFF_UP);
    }
    if (fd >= 0)
        close(fd);
    return up;
}
