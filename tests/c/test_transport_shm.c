/* The conformance suite over shared memory. */
#include "transport_suite.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "shm",
        .listen_url = "shm://%s/c.sock",
        .nobody_url = "shm://%s/nobody.sock",
        .raw = RAW_SEQPACKET,
    };
    return transport_suite_run(&suite);
}
