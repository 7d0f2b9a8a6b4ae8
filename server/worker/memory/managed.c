/* What the driver says of a module's variable. */
#include "gpw_handlers.h"

/* Of an address that is none the driver says so, too: then it is not managed. */
CUresult gpw_gp_managed_variable(struct gpw_session *s, uint64_t address, uint32_t *managed,
                                 uint64_t *begin, uint64_t *bytes)
{
    unsigned is_managed = 0;
    size_t size = 0;
    CUdeviceptr base = 0;
    bool known = s->driver->cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                  address) == CUDA_SUCCESS &&
                 is_managed &&
                 s->driver->cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS;
    *managed = known;
    *begin = known ? base : 0;
    *bytes = known ? size : 0;
    return CUDA_SUCCESS;
}
