#include "peer_filter.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <string.h>

/* Where things are in a frame: an Ethernet header, one of IPv6, one of ICMPv6. */
#define AT_PROTOCOL 12
#define AT_NEXT 20
#define AT_SOURCE 22
#define AT_TARGET_OF_PACKET 38
#define AT_ICMP_TYPE 54
#define AT_SOLICITED 62
#define LEAST_BYTES 54
#define LEAST_SOLICITATION 78
#define NEIGHBOUR_SOLICITATION 135

#define WORDS 4

static void emit(struct gpj_filter *f, uint16_t code, uint8_t yes, uint8_t no, uint32_t k)
{
    f->at[f->count++] = (struct sock_filter){code, yes, no, k};
}

static void answer(struct gpj_filter *f, uint32_t action)
{
    emit(f, BPF_RET | BPF_K, 0, 0, action);
}

/* What was loaded must be this, or the packet is dropped. */
static void must_be(struct gpj_filter *f, uint32_t value)
{
    emit(f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value);
    answer(f, TC_ACT_SHOT);
}

/* A load beyond a packet's end would end the filter with 0, which is TC_ACT_OK. */
static void must_have(struct gpj_filter *f, uint32_t bytes)
{
    emit(f, BPF_LD | BPF_W | BPF_LEN, 0, 0, 0);
    emit(f, BPF_JMP | BPF_JGE | BPF_K, 1, 0, bytes);
    answer(f, TC_ACT_SHOT);
}

static uint32_t word(const struct in6_addr *address, unsigned i)
{
    uint32_t value;
    memcpy(&value, address->s6_addr + i * sizeof value, sizeof value);
    return ntohl(value);
}

static void load_word(struct gpj_filter *f, uint32_t at)
{
    emit(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, at);
}

static void load_byte(struct gpj_filter *f, uint32_t at)
{
    emit(f, BPF_LD | BPF_B | BPF_ABS, 0, 0, at);
}

static void must_be_address(struct gpj_filter *f, uint32_t at, const struct in6_addr *address)
{
    for (unsigned i = 0; i < WORDS; i++) {
        load_word(f, at + i * (uint32_t)sizeof(uint32_t));
        must_be(f, word(address, i));
    }
}

/* One of these, or the packet is dropped. */
static void must_be_one(struct gpj_filter *f, uint32_t at, const struct in6_addr *addresses,
                        unsigned count)
{
    const unsigned each = 2 * WORDS + 1; /* instructions for an address */
    for (unsigned n = 0; n < count; n++) {
        for (unsigned i = 0; i < WORDS; i++) {
            load_word(f, at + i * (uint32_t)sizeof(uint32_t));
            emit(f, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(each - 2 * i - 2),
                 word(&addresses[n], i));
        }
        emit(f, BPF_JMP | BPF_JA, 0, 0, (count - n - 1) * each + 1);
    }
    answer(f, TC_ACT_SHOT);
}

/* Sent to the group that everybody is in whose address ends like the one that is sought. */
static void must_be_solicitation(struct gpj_filter *f)
{
    must_have(f, LEAST_SOLICITATION);
    load_byte(f, AT_NEXT);
    must_be(f, IPPROTO_ICMPV6);
    load_byte(f, AT_ICMP_TYPE);
    must_be(f, NEIGHBOUR_SOLICITATION);
    load_word(f, AT_TARGET_OF_PACKET);
    must_be(f, 0xff020000);
    load_word(f, AT_TARGET_OF_PACKET + 4);
    must_be(f, 0);
    load_word(f, AT_TARGET_OF_PACKET + 8);
    must_be(f, 1);
    load_byte(f, AT_TARGET_OF_PACKET + 12);
    must_be(f, 0xff);
}

void gpj_peer_filter_make(struct gpj_filter *f, bool in, const struct in6_addr *own,
                          const struct in6_addr *peers, unsigned peer_count)
{
    f->count = 0;
    must_have(f, LEAST_BYTES);
    emit(f, BPF_LD | BPF_H | BPF_ABS, 0, 0, AT_PROTOCOL);
    must_be(f, ETH_P_IPV6);
    if (in)
        must_be_one(f, AT_SOURCE, peers, peer_count);
    else
        must_be_address(f, AT_SOURCE, own);

    load_byte(f, AT_TARGET_OF_PACKET);
    emit(f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0xff); /* to a group */
    unsigned short jump = f->count;
    emit(f, BPF_JMP | BPF_JA, 0, 0, 0);
    must_be_solicitation(f);
    if (in)
        must_be_address(f, AT_SOLICITED, own);
    else
        must_be_one(f, AT_SOLICITED, peers, peer_count);
    answer(f, TC_ACT_OK);

    f->at[jump].k = (uint32_t)(f->count - jump - 1);
    if (in)
        must_be_address(f, AT_TARGET_OF_PACKET, own);
    else
        must_be_one(f, AT_TARGET_OF_PACKET, peers, peer_count);
    answer(f, TC_ACT_OK);
}
