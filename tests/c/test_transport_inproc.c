/* The conformance suite over the queues of one process. */
#include "transport_suite.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "inproc",
        .listen_url = "inproc://conformance",
        .nobody_url = "inproc://nobody",
        .raw = RAW_NONE,
    };
    return transport_suite_run(&suite);
}
