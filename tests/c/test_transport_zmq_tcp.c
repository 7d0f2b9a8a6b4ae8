/* The conformance suite over ZeroMQ and TCP, at the ports of a range. */
#include "transport_suite.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "zmq_tcp",
        .listen_url = "tcp://127.0.0.1:41000-41999",
        .nobody_url = "tcp://127.0.0.1:1?door=00112233445566778899aabbccddeeff",
        .raw = RAW_TCP,
    };
    return transport_suite_run(&suite);
}
