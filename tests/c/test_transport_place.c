/* Whom a limit of an address is for. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "transport/place.h"

static struct sockaddr_storage at(const char *text)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in *four = (void *)&a;
    struct sockaddr_in6 *six = (void *)&a;
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        a.ss_family = AF_INET;
        return a;
    }
    assert_int_equal(inet_pton(AF_INET6, text, &six->sin6_addr), 1);
    a.ss_family = AF_INET6;
    return a;
}

static bool same(const char *one, const char *other)
{
    struct sockaddr_storage a = at(one), b = at(other);
    assert_int_equal(gp_same_place(&a, &b), gp_same_place(&b, &a));
    return gp_same_place(&a, &b);
}

static void test_places(void **state)
{
    (void)state;
    assert_true(same("10.0.0.1", "10.0.0.1"));
    assert_false(same("10.0.0.1", "10.0.0.2"));
    assert_true(same("10.0.0.1", "::ffff:10.0.0.1"));
    assert_false(same("::ffff:10.0.0.1", "::ffff:10.0.0.2"));
    assert_true(same("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_false(same("2001:db8:1:2::1", "2001:db8:1:3::1"));
    assert_true(same("fd00::1", "fd00::2"));
    assert_true(same("fe80::1", "fe80::1"));
    assert_false(same("fe80::1", "fe80::2"));
    assert_false(same("::1", "127.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places)};
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
