/* The conformance suite over ZeroMQ and Unix sockets. */
#include "transport_suite.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "zmq_ipc",
        .listen_url = "ipc://%s/c.sock",
        .nobody_url = "ipc://%s/nobody.sock",
        .raw = RAW_STREAM,
    };
    return transport_suite_run(&suite);
}
