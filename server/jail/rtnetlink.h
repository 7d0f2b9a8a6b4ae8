/* Messages to the kernel about links, addresses and routes (rtnetlink(7)), each with its answer. */
#ifndef GPJ_RTNETLINK_H
#define GPJ_RTNETLINK_H

#include <linux/netlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPJ_MESSAGE_MAX 16384

struct gpj_message {
    union {
        struct nlmsghdr head;
        unsigned char bytes[GPJ_MESSAGE_MAX];
    };
    bool full; /* something did not fit: it is not sent */
};

/* The header of a family (struct ifinfomsg, …) comes first; attributes are added behind it. */
void gpj_message_begin(struct gpj_message *m, uint16_t type, uint16_t flags, const void *header,
                       size_t size);
void gpj_message_add(struct gpj_message *m, uint16_t type, const void *data, size_t size);
/* What is added until gpj_message_close(m, the answer) is inside. */
size_t gpj_message_open(struct gpj_message *m, uint16_t type);
void gpj_message_close(struct gpj_message *m, size_t at);

/* For the network namespace that this process is in, whichever it is in later; -1 with errno. */
int gpj_rtnetlink_open(void);
/* Send, and wait for what the kernel says: 0 or an errno. */
int gpj_rtnetlink_ask(int fd, struct gpj_message *m);

#endif
