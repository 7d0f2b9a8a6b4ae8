/* The devices as the server last described them, shared by all threads. */
#ifndef GPC_NVML_STATE_H
#define GPC_NVML_STATE_H

#include <nvml.h>

#include "nvml_answer.h"

/* Count one more user; the first has everything fetched. */
nvmlReturn_t gpc_nvml_open(unsigned int flags);
/* One fewer. NVML_ERROR_UNINITIALIZED if there was none. */
nvmlReturn_t gpc_nvml_close(void);

/* Lock and borrow the state; with `fresh` it is fetched again when it is old. On success
 * `gpc_nvml_give_back` must follow, soon. */
nvmlReturn_t gpc_nvml_borrow(bool fresh, const struct gpc_nvml_state **state);
void gpc_nvml_give_back(void);
/* Of a borrowed state: whether the server no longer names the device. */
bool gpc_nvml_is_lost(uint32_t index);

#endif
