/* The conformance suite over our own TCP, in clear. */
#include "transport_suite.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "tcp_plain",
        .listen_url = "plain://127.0.0.1:*",
        .nobody_url = "plain://127.0.0.1:1?door=00112233445566778899aabbccddeeff",
        .raw = RAW_TCP,
    };
    return transport_suite_run(&suite);
}
