/* The one thing in which the libraries of CUDA 12 and 13 differ. */
#include "cupti_export.h"

GPC_CUPTI_EXPORT uint32_t cuptiGetVersion(uint32_t *version);

uint32_t cuptiGetVersion(uint32_t *version)
{
    if (!version)
        return GP_CUPTI_INVALID_PARAMETER;
    *version = GPC_CUPTI_VERSION;
    return GP_CUPTI_SUCCESS;
}
