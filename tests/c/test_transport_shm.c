/* The conformance suite over shared memory. */
#include "shm_server.h"
#include "transport_suite.h"

int main(void)
{
    const struct transport_suite suite = {
        .name = "shm",
        .listen_url = "shm://%s/c.sock",
        .nobody_url = "shm://%s/nobody.sock",
        .raw = RAW_SEQPACKET,
        .transport = shm_served_make(),
    };
    return transport_suite_run(&suite);
}
