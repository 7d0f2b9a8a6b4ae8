/* The conformance suite over UCX: its own tcp, or what GPUPOOL_UCX_TLS names. */
#include "transport/ucx_channel.h"
#include "transport_suite.h"
#include "ucx_here.h"

int main(void)
{
    static const struct transport_suite suite = {
        .name = "ucx",
        .listen_url = "ucx://127.0.0.1:*",
        .nobody_url = "ucx://127.0.0.1:1?door=00112233445566778899aabbccddeeff",
        .raw = RAW_TCP,
        .transport = &gp_transport_ucx,
    };
    return ucx_is_here(gp_transport_ucx.ready) ? transport_suite_run(&suite) : UCX_SKIPPED;
}
