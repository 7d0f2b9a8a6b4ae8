/* Sealed addresses of workers: what is right is taken, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "peer_seal.h"

#define NOW 1800000000
#define URL "tcp://10.1.2.3:45678?word=ab"

static const uint8_t key[GPW_PEER_KEY] = "one key", other_key[GPW_PEER_KEY] = "another";
static const uint8_t secret[GPW_PEER_SECRET] = "pair", other_secret[GPW_PEER_SECRET] = "riap";

static void seal(char out[512])
{
    assert_true(gpw_peer_seal(key, secret, NOW, URL, out, 512));
}

static void a_seal_is_taken_off(void **state)
{
    char text[512];
    (void)state;
    seal(text);
    assert_null(gpw_peer_unseal(key, secret, NOW + GPW_PEER_SEAL_SECONDS, text));
    assert_string_equal(text, URL);
    seal(text);
    assert_null(gpw_peer_unseal(key, secret, NOW - GPW_PEER_SEAL_SECONDS, text));
}

static void what_is_changed_is_refused(void **state)
{
    char text[512];
    (void)state;
    seal(text);
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) { /* every character of it */
        seal(text);
        text[i] ^= 1;
        assert_non_null(gpw_peer_unseal(key, secret, NOW, text));
    }
    for (size_t cut = 0; cut < length; cut++) {
        seal(text);
        text[cut] = '\0';
        assert_non_null(gpw_peer_unseal(key, secret, NOW, text));
    }
}

static void other_keys_pairs_and_times_are_refused(void **state)
{
    char text[512];
    (void)state;
    seal(text);
    assert_non_null(gpw_peer_unseal(other_key, secret, NOW, text));
    seal(text);
    assert_non_null(gpw_peer_unseal(key, other_secret, NOW, text));
    seal(text);
    assert_non_null(gpw_peer_unseal(key, secret, NOW + GPW_PEER_SEAL_SECONDS + 1, text));
    seal(text);
    assert_non_null(gpw_peer_unseal(key, secret, NOW - GPW_PEER_SEAL_SECONDS - 1, text));
    assert_false(gpw_peer_seal(key, secret, NOW, "tcp://a:1#x", text, sizeof text));
    assert_false(gpw_peer_seal(key, secret, NOW, URL, text, 100));
}

static void only_other_hosts_over_tcp(void **state)
{
    static const char *const good[] = {"tcp://10.0.0.1:1",
                                       "tcp://gpu-2.example:7",
                                       "tcp://[fd00::1]:9",
                                       "tcp://220.1.1.1:4",
                                       "tcp://172.17.0.2:3?key=aa",
                                       "tls://10.0.0.1:1?door=aa",
                                       "plain://gpu-2.example:7?door=aa"};
    static const char *const bad[] = {"",
                                      "tcp://",
                                      "tcp://host",
                                      "ipc:///tmp/x",
                                      "shm:///tmp/x",
                                      "inproc://x",
                                      "udp://1.2.3.4:5",
                                      "tcp://169.254.169.254:80",
                                      "tcp://[fe80::1]:1",
                                      "tcp://0.0.0.0:1",
                                      "tcp://*:1",
                                      "tcp://[::]:1",
                                      "tls://169.254.169.254:80",
                                      "plain://[::]:1",
                                      "tls:///tmp/x"};
    static const char *const own[] = {"tcp://127.0.0.1:1", "tcp://127.1:1",     "tcp://LocalHost:1",
                                      "tcp://[::1]:1",     "tls://127.0.0.1:1", "plain://[::1]:2"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(gpw_peer_may_go(good[i], false) && gpw_peer_may_go(good[i], true));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(gpw_peer_may_go(bad[i], false) || gpw_peer_may_go(bad[i], true));
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        assert_true(!gpw_peer_may_go(own[i], false) && gpw_peer_may_go(own[i], true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seal_is_taken_off),
        cmocka_unit_test(what_is_changed_is_refused),
        cmocka_unit_test(other_keys_pairs_and_times_are_refused),
        cmocka_unit_test(only_other_hosts_over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
