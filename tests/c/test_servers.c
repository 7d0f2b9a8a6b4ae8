/* The lists of servers and tokens, and PCI addresses of several hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "pci.h"
#include "servers.h"

static char why[320];

static int read_list(const char *servers, const char *tokens, struct gpc_servers *list)
{
    why[0] = '\0';
    return gpc_servers_read(servers, tokens, list, why, sizeof why);
}

static void one_server_takes_its_token_with_commas(void **state)
{
    (void)state;
    struct gpc_servers list;
    assert_int_equal(read_list("tcp://a:7700", " to,ken\r\n", &list), 0);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.server[0], "tcp://a:7700");
    assert_string_equal(list.token[0], "to,ken");
    gpc_servers_free(&list);
    assert_int_equal(read_list("tcp://a:7700", "", &list), 0);
    assert_string_equal(list.token[0], "");
    gpc_servers_free(&list);
}

static void tokens_are_shared_or_one_for_each(void **state)
{
    (void)state;
    struct gpc_servers list;
    assert_int_equal(read_list("tcp://a:1, tcp://b:2 ,tcp://c:3", "x", &list), 0);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.server[1], "tcp://b:2");
    assert_string_equal(list.token[2], "x");
    gpc_servers_free(&list);
    assert_int_equal(read_list("tcp://a:1,tcp://b:2", " x , y", &list), 0);
    assert_string_equal(list.token[0], "x");
    assert_string_equal(list.token[1], "y");
    gpc_servers_free(&list);
    assert_int_equal(read_list("tcp://a:1,tcp://b:2,tcp://c:3", "x,y", &list), -1);
    assert_non_null(strstr(why, "2 tokens for 3 servers"));
}

static void tokens_are_of_one_line(void **state)
{
    (void)state;
    struct gpc_servers list;
    static const char *const wrong[] = {"a\nservers: 9", "a b", "a\rb", "a\tb", "a\x7f"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(read_list("tcp://a:7700", wrong[i], &list), -1);
        assert_non_null(strstr(why, "a line's end within"));
    }
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    struct gpc_servers list;
    static const char *const wrong[] = {"tcp://a:1,", ",tcp://a:1", "tcp://a:1,,tcp://b:2", ","};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(read_list(wrong[i], "x", &list), -1);
        assert_non_null(strstr(why, "empty address"));
    }
    char many[GP_SESSIONS_MAX * 8 + 32] = "", longest[GPC_SERVER_MAX + 16];
    for (unsigned i = 0; i <= GP_SESSIONS_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%stcp://h", i ? "," : "");
    assert_int_equal(read_list(many, "x", &list), -1);
    assert_non_null(strstr(why, "more than 16"));
    *strrchr(many, ',') = '\0';
    assert_int_equal(read_list(many, "x", &list), 0);
    assert_int_equal(list.count, GP_SESSIONS_MAX);
    gpc_servers_free(&list);
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(read_list(longest, "x", &list), -1);
    assert_non_null(strstr(why, "too long"));
}

/* A file with `size` bytes of `text`, whose name the variable has. */
static void put_file(char *path, const char *text, size_t size)
{
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, size), (ssize_t)size);
    close(file);
    setenv("GPUPOOL_TOKEN_FILE", path, 1);
}

static int read_environment(struct gpc_servers *list)
{
    why[0] = '\0';
    return gpc_servers_of_environment(list, why, sizeof why);
}

static void a_token_comes_from_a_file_that_is_read_again(void **state)
{
    (void)state;
    struct gpc_servers list;
    char path[] = "/tmp/gpupool-token-XXXXXX";
    setenv("GPUPOOL_SERVER", "tcp://a:1,tcp://b:2", 1);
    unsetenv("GPUPOOL_TOKEN");
    put_file(path, "\357\273\277first\r\n", 10); /* as Windows' editors write it */
    assert_int_equal(read_environment(&list), 0);
    assert_string_equal(list.token[0], "first");
    assert_string_equal(list.token[1], "first");
    gpc_servers_free(&list);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(read_environment(&list), 0);
    assert_string_equal(list.token[0], "fi");
    gpc_servers_free(&list);
    setenv("GPUPOOL_TOKEN", "own", 1); /* as `gpupool run` sets it */
    assert_int_equal(read_environment(&list), 0);
    assert_string_equal(list.token[0], "own");
    gpc_servers_free(&list);
    unsetenv("GPUPOOL_TOKEN");
    unlink(path);
    assert_int_equal(read_environment(&list), -1);
    assert_non_null(strstr(why, "cannot be read: No such file"));
    unsetenv("GPUPOOL_TOKEN_FILE");
    assert_int_equal(read_environment(&list), 0); /* no token */
    assert_string_equal(list.token[0], "");
    gpc_servers_free(&list);
    unsetenv("GPUPOOL_SERVER");
    assert_int_equal(read_environment(&list), -1);
    assert_non_null(strstr(why, "GPUPOOL_SERVER is not set"));
}

static void a_file_with_no_token_is_refused(void **state)
{
    (void)state;
    struct gpc_servers list;
    static char large[GPC_TOKENS_MAX + 1];
    memset(large, 'a', sizeof large);
    struct {
        const char *text;
        size_t size;
    } wrong[] = {{large, sizeof large}, {"to\0ken", 6}};
    setenv("GPUPOOL_SERVER", "tcp://a:1", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[] = "/tmp/gpupool-token-XXXXXX";
        put_file(path, wrong[i].text, wrong[i].size);
        assert_int_equal(read_environment(&list), -1);
        assert_non_null(strstr(why, "holds no token"));
        unlink(path);
    }
    setenv("GPUPOOL_TOKEN_FILE", "/", 1);
    assert_int_equal(read_environment(&list), -1);
    assert_non_null(strstr(why, "Is a directory"));
    unsetenv("GPUPOOL_TOKEN_FILE");
    unsetenv("GPUPOOL_SERVER");
}

static void domains_tell_hosts_apart(void **state)
{
    (void)state;
    struct gpc_pci own, taken[3] = {{0, 0x3b, 0}, {1, 0x3b, 0}, {2, 0x3c, 0}};
    char text[16];
    assert_true(gpc_pci_read("0000:3B:00.0", &own));
    assert_int_equal(own.bus, 0x3b);
    assert_int_equal(gpc_pci_free_domain(&own, taken, 0, 1), 0);
    assert_int_equal(gpc_pci_free_domain(&own, taken, 1, 1), 1);
    assert_int_equal(gpc_pci_free_domain(&own, taken, 3, 1), 2); /* another bus has 2 */
    own.domain = 2;
    gpc_pci_write(&own, text, sizeof text);
    assert_string_equal(text, "0002:3B:00.0");
    assert_true(gpc_pci_read("00010000:af:00.0", &own));
    assert_int_equal(own.domain, 0x10000);
    assert_false(gpc_pci_read("GPU-0", &own));
    assert_false(gpc_pci_read("", &own));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_server_takes_its_token_with_commas),
        cmocka_unit_test(tokens_are_of_one_line),
        cmocka_unit_test(tokens_are_shared_or_one_for_each),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(a_token_comes_from_a_file_that_is_read_again),
        cmocka_unit_test(a_file_with_no_token_is_refused),
        cmocka_unit_test(domains_tell_hosts_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
