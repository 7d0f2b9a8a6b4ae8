/* What the filter of a lease's link lets through, asked of the kernel that runs it: the filter is
 * put on a pair of sockets, and frames are sent from one to the other. What a filter returns is
 * how many bytes of one are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer_filter.h"

#define UDP_BYTES (14 + 40 + 8)
#define SOLICITATION_BYTES (14 + 40 + 24)

static const char *const own_text = "fd00::1", *const stranger = "fd00::bad";

static struct in6_addr address(const char *text)
{
    struct in6_addr out;
    assert_int_equal(inet_pton(AF_INET6, text, &out), 1);
    return out;
}

static struct in6_addr peer(unsigned i)
{
    struct in6_addr out = address("fd00::100");
    out.s6_addr[15] = (uint8_t)i;
    return out;
}

struct frame {
    unsigned char bytes[256];
    size_t size;
};

static struct frame frame_make(struct in6_addr from, struct in6_addr to)
{
    struct frame f = {.size = UDP_BYTES};
    f.bytes[12] = ETH_P_IPV6 >> 8;
    f.bytes[13] = ETH_P_IPV6 & 0xff;
    f.bytes[14] = 0x60;
    f.bytes[20] = IPPROTO_UDP;
    memcpy(f.bytes + 22, &from, sizeof from);
    memcpy(f.bytes + 38, &to, sizeof to);
    return f;
}

/* Who has this address? */
static struct frame solicitation(struct in6_addr from, struct in6_addr sought)
{
    struct in6_addr group = address("ff02::1:ff00:0");
    memcpy(group.s6_addr + 13, sought.s6_addr + 13, 3);
    struct frame f = frame_make(from, group);
    f.size = SOLICITATION_BYTES;
    f.bytes[20] = IPPROTO_ICMPV6;
    f.bytes[54] = 135;
    memcpy(f.bytes + 62, &sought, sizeof sought);
    return f;
}

struct link {
    int ends[2];
};

static struct link link_make(bool in, unsigned peers)
{
    struct link link;
    struct gpj_filter filter;
    struct in6_addr own = address(own_text), all[GPJ_PEERS_MAX];
    for (unsigned i = 0; i < peers; i++)
        all[i] = peer(i);
    gpj_peer_filter_make(&filter, in, &own, all, peers);
    assert_true(filter.count <= GPJ_FILTER_MAX);
    struct sock_fprog program = {filter.count, filter.at};
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, link.ends), 0);
    assert_int_equal(
        setsockopt(link.ends[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    return link;
}

static void link_close(struct link link)
{
    close(link.ends[0]);
    close(link.ends[1]);
}

/* Nothing kept is TC_ACT_OK, two bytes are TC_ACT_SHOT. */
static bool passes(struct link link, struct frame f)
{
    unsigned char kept[256];
    ssize_t sent = send(link.ends[0], f.bytes, f.size, 0);
    ssize_t got = recv(link.ends[1], kept, sizeof kept, 0);
    assert_true(sent == (ssize_t)f.size || (sent < 0 && errno == EPERM)); /* the filter's 0 */
    assert_true((got < 0 && errno == EAGAIN) || got == TC_ACT_SHOT);
    return got < 0;
}

static void peers_pass(void **state)
{
    (void)state;
    const unsigned counts[] = {1, 2, GPJ_PEERS_MAX};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct link in = link_make(true, counts[c]), out = link_make(false, counts[c]);
        for (unsigned i = 0; i < GPJ_PEERS_MAX; i++) {
            bool is_peer = i < counts[c];
            assert_int_equal(passes(in, frame_make(peer(i), address(own_text))), is_peer);
            assert_int_equal(passes(out, frame_make(address(own_text), peer(i))), is_peer);
            assert_int_equal(passes(in, solicitation(peer(i), address(own_text))), is_peer);
            assert_int_equal(passes(out, solicitation(address(own_text), peer(i))), is_peer);
        }
        link_close(in);
        link_close(out);
    }
}

static void strangers_do_not(void **state)
{
    (void)state;
    struct link in = link_make(true, 2), out = link_make(false, 2);
    struct in6_addr own = address(own_text), other = address(stranger), all = address("ff02::1");
    assert_false(passes(in, frame_make(other, own)));
    assert_false(passes(in, frame_make(peer(0), other)));
    assert_false(passes(in, frame_make(peer(0), peer(1))));
    assert_false(passes(in, frame_make(own, own)));
    assert_false(passes(in, frame_make(peer(0), all)));
    assert_false(passes(out, frame_make(own, other)));
    assert_false(passes(out, frame_make(other, peer(0))));
    assert_false(passes(out, frame_make(peer(0), peer(1))));
    assert_false(passes(out, frame_make(own, own)));
    assert_false(passes(out, frame_make(own, all)));
    link_close(in);
    link_close(out);
}

/* What looks like a search for a neighbour, but for one thing. */
static void only_searches_for_peers_go_to_groups(void **state)
{
    (void)state;
    struct link in = link_make(true, 2), out = link_make(false, 2);
    struct in6_addr own = address(own_text), other = address(stranger);
    assert_false(passes(out, solicitation(own, other)));
    assert_false(passes(out, solicitation(other, peer(0))));
    assert_false(passes(in, solicitation(other, own)));
    assert_false(passes(in, solicitation(peer(0), peer(1))));
    static const struct {
        unsigned at;
        unsigned char byte;
    } changes[] = {{20, IPPROTO_UDP}, {54, 136}, {39, 5}, {45, 1}, {49, 2}, {50, 0}, {77, 0x99}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct frame f = solicitation(own, peer(0)), g = solicitation(peer(0), own);
        f.bytes[changes[i].at] = g.bytes[changes[i].at] = changes[i].byte;
        assert_false(passes(out, f));
        assert_false(passes(in, g));
    }
    link_close(in);
    link_close(out);
}

static void of_cut_and_other_frames_nothing_passes(void **state)
{
    (void)state;
    struct link in = link_make(true, 1), out = link_make(false, 1);
    struct frame f = frame_make(address(own_text), peer(0));
    struct frame s = solicitation(address(own_text), peer(0));
    struct frame back = solicitation(peer(0), address(own_text));
    for (size_t size = TC_ACT_SHOT + 1; size < SOLICITATION_BYTES; size++) {
        f.size = s.size = back.size = size;
        if (size < 54)
            assert_false(passes(out, f));
        assert_false(passes(out, s));
        assert_false(passes(in, back));
    }
    static const uint16_t protocols[] = {ETH_P_IP, ETH_P_ARP, ETH_P_8021Q, 0, 0xffff};
    for (size_t i = 0; i < sizeof protocols / sizeof protocols[0]; i++) {
        struct frame other = frame_make(address(own_text), peer(0));
        other.bytes[12] = (unsigned char)(protocols[i] >> 8);
        other.bytes[13] = (unsigned char)protocols[i];
        assert_false(passes(out, other));
    }
    link_close(in);
    link_close(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_pass),
        cmocka_unit_test(strangers_do_not),
        cmocka_unit_test(only_searches_for_peers_go_to_groups),
        cmocka_unit_test(of_cut_and_other_frames_nothing_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
