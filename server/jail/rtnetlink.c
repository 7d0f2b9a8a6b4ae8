#include "rtnetlink.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void *room(struct gpj_message *m, size_t size)
{
    size_t at = NLMSG_ALIGN(m->head.nlmsg_len);
    if (m->full || size > sizeof m->bytes - at) {
        m->full = true;
        return NULL;
    }
    m->head.nlmsg_len = (uint32_t)(at + size);
    return m->bytes + at;
}

void gpj_message_begin(struct gpj_message *m, uint16_t type, uint16_t flags, const void *header,
                       size_t size)
{
    memset(m, 0, sizeof *m);
    m->head = (struct nlmsghdr){.nlmsg_len = NLMSG_HDRLEN,
                                .nlmsg_type = type,
                                .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags)};
    void *to = room(m, size);
    if (to)
        memcpy(to, header, size);
}

void gpj_message_add(struct gpj_message *m, uint16_t type, const void *data, size_t size)
{
    struct rtattr *attribute = room(m, RTA_LENGTH(size));
    if (!attribute)
        return;
    *attribute = (struct rtattr){.rta_len = (unsigned short)RTA_LENGTH(size), .rta_type = type};
    if (size)
        memcpy(RTA_DATA(attribute), data, size);
}

size_t gpj_message_open(struct gpj_message *m, uint16_t type)
{
    gpj_message_add(m, type, NULL, 0);
    return m->head.nlmsg_len - RTA_LENGTH(0);
}

void gpj_message_close(struct gpj_message *m, size_t at)
{
    struct rtattr *attribute = (struct rtattr *)(void *)(m->bytes + at);
    if (!m->full)
        attribute->rta_len = (unsigned short)(m->head.nlmsg_len - at);
}

int gpj_rtnetlink_open(void)
{
    return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
}

int gpj_rtnetlink_ask(int fd, struct gpj_message *m)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    union {
        struct nlmsghdr head;
        unsigned char bytes[4096];
    } answer;
    if (m->full)
        return EMSGSIZE;
    if (sendto(fd, m->bytes, m->head.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0)
        return errno;
    ssize_t got = recv(fd, answer.bytes, sizeof answer.bytes, 0);
    if (got < 0)
        return errno;
    if (!NLMSG_OK(&answer.head, (size_t)got) || answer.head.nlmsg_type != NLMSG_ERROR ||
        answer.head.nlmsg_len < NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        return EPROTO;
    return -((struct nlmsgerr *)NLMSG_DATA(&answer.head))->error;
}
