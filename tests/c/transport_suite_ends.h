/*
 * What the files of the conformance suite share: the transport under test, two
 * connected ends, numbered messages. And the tests themselves, by file.
 */
#ifndef GP_TRANSPORT_SUITE_ENDS_H
#define GP_TRANSPORT_SUITE_ENDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"
#include "transport_suite.h"
#include "wire/wire.h"

/* Long enough that only what hangs runs into it. */
#define PATIENCE_MS 20000
#define PATIENCE_US ((int64_t)PATIENCE_MS * 1000)

/* The suite under test; tests get nothing else. */
extern const struct transport_suite *suite;
extern const struct gp_transport *tp;
extern char listen_url[128];
extern char nobody_url[128];

/* Have the transport of `scheme` under test, at a port of this host. */
void transport_use(const char *scheme);

/* Two connected ends in this process. */
struct ends {
    struct gp_listener *listener;
    struct gp_channel *client, *worker;
};

void ends_open(struct ends *e);
/* Connect to `listener` from a thread and accept here. */
void ends_join(struct ends *e);
/* The same, by another address that leads there. */
void ends_join_at(struct ends *e, const char *url);
void ends_close(struct ends *e);

/* Sizes that meet every edge: 16, not a multiple of 8, batch-sized, largest. */
size_t message_size(uint64_t n);
/* The bytes of message `n`. */
void message_fill(unsigned char *at, uint64_t n, size_t size);
/* Whether these are the bytes of message `n`. */
bool message_is(const void *message, uint64_t n, size_t size);
int send_bytes(struct gp_channel *ch, const void *bytes, size_t size, unsigned flags);
int send_numbered(struct gp_channel *ch, uint64_t n, size_t size, unsigned flags);
void expect_numbered(struct gp_channel *ch, uint64_t n, size_t size);
/* One line that says something. */
void expect_line(const struct gp_error *err);

/* A thread that sends numbered messages. */
struct stream {
    struct gp_channel *channel;
    uint64_t first, count;
    size_t size; /* 0: message_size() */
    unsigned flags;
    _Atomic uint64_t sent;
    _Atomic int rc;
};
void *stream_main(void *arg);

void test_table(void **state);
void test_connect(void **state);
void test_speak_at_once(void **state);
void test_channel_outlives_listener(void **state);
void test_accept_nobody(void **state);
void test_refuse_nobody(void **state);
void test_refuse_wrong_service(void **state);
void test_refuse_bad_address(void **state);
void test_garbage_on_socket(void **state);
void test_exchange(void **state);
void test_order(void **state);
void test_order_later(void **state);
void test_later_needs_no_flush(void **state);
void test_limits(void **state);
void test_recv_timeout(void **state);
void test_many_senders(void **state);
void test_both_send(void **state);
void test_small_beside_huge(void **state);
void test_slow_peer(void **state);
void test_close_drains(void **state);
void test_close_wakes(void **state);
void test_killed_while_idle(void **state);
void test_killed_while_receiving(void **state);
void test_killed_while_sending(void **state);
void test_killed_while_sending_little(void **state);
void test_killed_behind_a_flood(void **state);
void test_leave_keeps_what_was_sent(void **state);
void test_fork_is_harmless(void **state);
void test_shares(void **state);
void test_shares_outstanding(void **state);
void test_shares_threads(void **state);

#endif
