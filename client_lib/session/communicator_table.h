/*
 * What our libnccl.so.2 asks of our libcuda.so.1: a table of cuGetExportTable, by which its calls
 * go over the program's own sessions. Both are of one release; another one's table has another
 * name.
 */
#ifndef GPC_COMMUNICATOR_TABLE_H
#define GPC_COMMUNICATOR_TABLE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "gp_messages.h"

/* The table's name. Its last byte is the form of what is below. */
#define GPC_COMMUNICATOR_TABLE                                                                     \
    {{0x67, 0x70, 0x75, 0x70, 0x6f, 0x6f, 0x6c, 0x20, 'n', 'c', 'c', 'l', 0, 0, 0, 1}}

/* Each is the message of its name (proto/spec/messages/communicator.toml), but for the first. */
struct gpc_communicator_table {
    /* As cuInit; and so that a context is current, that of the first device if none was. `*left`
     * is what `leave` puts back. */
    CUresult (*enter)(CUdevice device, CUcontext *left);
    CUresult (*leave)(CUdevice device, CUcontext left);
    /* Of the current context; 0 where none is, as the runtime has it. */
    CUresult (*device)(CUdevice *device);
    CUresult (*devices)(int *count);
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes);
    CUresult (*release)(CUdeviceptr address);

    CUresult (*version)(int32_t *result, int32_t *version);
    CUresult (*unique_id)(int32_t *result, uint8_t *id);
    CUresult (*init)(gp_communicator *comm, int32_t ranks, int32_t rank, uint32_t id_count,
                     const uint8_t *ids, const struct gp_nccl_config *config, int32_t *result);
    CUresult (*split)(gp_communicator parent, gp_communicator *comm, int32_t color, int32_t key,
                      const struct gp_nccl_config *config, int32_t *result);
    CUresult (*shrink)(gp_communicator parent, gp_communicator *comm, int32_t flags, uint32_t count,
                       const int32_t *excluded, const struct gp_nccl_config *config,
                       int32_t *result);
    /* All of one session; handles and streams are the application's, and are made those that
     * travel, in place. */
    CUresult (*group)(struct gp_nccl_call *calls, uint32_t count, bool waits);
    CUresult (*settled)(gp_communicator comm, int32_t results[2]);
    CUresult (*state)(gp_communicator comm, int32_t *result, int32_t *ranks, int32_t *rank);
    CUresult (*finalize)(gp_communicator comm, int32_t *result);
    CUresult (*end)(gp_communicator comm, uint32_t aborts, int32_t *result);
    CUresult (*last_error)(gp_communicator comm, char text[GP_NCCL_TEXT_MAX]);
    CUresult (*operation)(gp_communicator comm, uint64_t scalar, int32_t datatype,
                          int32_t residence, int32_t *result, uint64_t *operation);
    CUresult (*operation_end)(gp_communicator comm, uint64_t operation, int32_t *result);
    CUresult (*enlist)(gp_communicator comm, uint64_t address, uint64_t bytes, int32_t *result,
                       uint64_t *registration);
    CUresult (*delist)(gp_communicator comm, uint64_t registration, int32_t *result);
};
extern const struct gpc_communicator_table gpc_communicator_table;

#endif
