/* Workers of the same client on other hosts: bytes and signals go to them directly. */
#include "gpw_handlers.h"

CUresult gpw_gp_peer_listen(struct gpw_session *s, uint32_t peer, const uint8_t *secret, char *url,
                            uint32_t *n_url)
{
    (void)s, (void)peer, (void)secret, (void)url;
    *n_url = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpw_gp_peer_connect(struct gpw_session *s, struct gpw_token token, uint32_t peer,
                             const uint8_t *secret, const char *url)
{
    (void)s, (void)token, (void)peer, (void)secret, (void)url;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpw_gp_peer_send(struct gpw_session *s, CUstream stream, uint32_t peer, uint64_t tag,
                          CUdeviceptr src, uint64_t bytes)
{
    (void)s, (void)stream, (void)peer, (void)tag, (void)src, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpw_gp_peer_recv(struct gpw_session *s, CUstream stream, uint32_t peer, uint64_t tag,
                          CUdeviceptr dst, uint64_t bytes)
{
    (void)s, (void)stream, (void)peer, (void)tag, (void)dst, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}
