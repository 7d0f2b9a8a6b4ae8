/* What a communicator is told to do at once, and what it and NCCL say of themselves. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "nccl.h"
#include "peer.h"
#include "unique_id.h"

static ncclResult_t finalize(struct gpw_session *s, struct gp_communicator *comm)
{
    ncclResult_t r = s->nccl->library.ncclCommFinalize
                         ? s->nccl->library.ncclCommFinalize(comm->real)
                         : ncclInvalidUsage;
    return r == ncclInProgress ? ncclSuccess : r;
}

static ncclResult_t operation(struct gpw_session *s, struct gp_communicator *comm, uint64_t scalar,
                              int32_t datatype, int32_t residence, uint64_t *made)
{
    ncclRedOp_t op = ncclNumOps;
    uint32_t bytes = gp_nccl_type_bytes(datatype);
    bool here = residence == ncclScalarHostImmediate;
    if (bytes == 0 || (!here && residence != ncclScalarDevice) ||
        (!here && !gpw_memory_reach(s, scalar, bytes)) ||
        !s->nccl->library.ncclRedOpCreatePreMulSum)
        return ncclInvalidArgument;
    ncclResult_t r = s->nccl->library.ncclRedOpCreatePreMulSum(
        &op, here ? (void *)&scalar : (void *)(uintptr_t)scalar, (ncclDataType_t)datatype,
        (ncclScalarResidence_t)residence, comm->real);
    *made = (uint64_t)op;
    return r;
}

static ncclResult_t operation_end(struct gpw_session *s, struct gp_communicator *comm,
                                  uint64_t number)
{
    if (number < ncclNumOps || number > ncclMaxRedOp || !s->nccl->library.ncclRedOpDestroy)
        return ncclInvalidArgument;
    return s->nccl->library.ncclRedOpDestroy((ncclRedOp_t)number, comm->real);
}

/* A free number; 0: there are too many. */
static uint64_t registration_new(struct gp_communicator *c)
{
    for (uint32_t i = 0; i < c->registration_room; i++)
        if (!c->registrations[i])
            return i + 1;
    uint32_t room = c->registration_room ? 2 * c->registration_room : 16;
    void **grown = room <= GPW_REGISTRATIONS_MAX ? realloc(c->registrations, room * sizeof *grown)
                                                 : NULL;
    if (!grown)
        return 0;
    memset(grown + c->registration_room, 0, (room - c->registration_room) * sizeof *grown);
    uint64_t number = c->registration_room + 1;
    c->registrations = grown;
    c->registration_room = room;
    return number;
}

static ncclResult_t enlist(struct gpw_session *s, struct gp_communicator *comm, uint64_t address,
                           uint64_t bytes, uint64_t *made)
{
    if (!bytes || !gpw_memory_is_device(s, address, bytes) || !s->nccl->library.ncclCommRegister)
        return ncclInvalidArgument;
    *made = registration_new(comm);
    if (*made == 0)
        return gpw_nccl_refuse(s, ncclSystemError, "a communicator has at most %d registrations",
                               GPW_REGISTRATIONS_MAX);
    return s->nccl->library.ncclCommRegister(comm->real, (void *)(uintptr_t)address, bytes,
                                             &comm->registrations[*made - 1]);
}

/* NCCL gives no handle for what it has no use for registering. */
static ncclResult_t delist(struct gpw_session *s, struct gp_communicator *comm, uint64_t number)
{
    if (number == 0 || number > comm->registration_room || !s->nccl->library.ncclCommDeregister)
        return ncclInvalidArgument;
    void *handle = comm->registrations[number - 1];
    comm->registrations[number - 1] = NULL;
    return handle ? s->nccl->library.ncclCommDeregister(comm->real, handle) : ncclSuccess;
}

CUresult gpw_communicator_do(struct gpw_session *s, gp_communicator comm, enum gpw_deed deed,
                             uint64_t a, uint64_t b, int32_t c, int32_t *result, uint64_t *made)
{
    CUcontext before = NULL;
    ncclResult_t r = gpw_communicator_usable(s, comm);
    s->driver->cuCtxGetCurrent(&before);
    if (r == ncclSuccess && deed == GPW_FINALIZE)
        r = finalize(s, comm);
    else if (r == ncclSuccess && deed == GPW_OPERATION)
        r = operation(s, comm, a, (int32_t)b, c, made);
    else if (r == ncclSuccess && deed == GPW_OPERATION_END)
        r = operation_end(s, comm, a);
    else if (r == ncclSuccess && deed == GPW_REGISTER)
        r = enlist(s, comm, a, b, made);
    else if (r == ncclSuccess)
        r = delist(s, comm, a);
    s->driver->cuCtxSetCurrent(before); /* NCCL makes that of a device current */
    *result = (int32_t)r;
    return CUDA_SUCCESS;
}

CUresult gpw_nccl_facts(struct gpw_session *s, gp_communicator comm, int32_t *result, int32_t *a,
                        int32_t *b)
{
    const struct gpw_nccl *n = gpw_nccl(s);
    *result = !n ? ncclSystemError : comm ? (int32_t)gpw_communicator_state(s, comm) : ncclSuccess;
    *a = comm ? comm->ranks : n ? n->version : 0;
    if (b)
        *b = comm ? comm->rank : 0;
    return CUDA_SUCCESS;
}

static ncclResult_t id_make(struct gpw_session *s, const struct gpw_nccl *n, uint8_t *sealed)
{
    const uint8_t *key = gpw_peers_key(s);
    ncclUniqueId id;
    if (!key)
        return gpw_nccl_refuse(s, ncclSystemError, "the lease's key has not come to this server");
    if (s->nccl->ids == GPW_UNIQUE_IDS_MAX)
        return gpw_nccl_refuse(s, ncclSystemError, "a session makes at most %d unique ids",
                               GPW_UNIQUE_IDS_MAX);
    ncclResult_t r = n->library.ncclGetUniqueId(&id);
    if (r != ncclSuccess)
        return r;
    s->nccl->ids++;
    if (!gpw_unique_id_seal(key, &id, sealed))
        return gpw_nccl_refuse(s, ncclInternalError, "NCCL %d makes longer ids than are known here",
                               n->version);
    return ncclSuccess;
}

static void error_tell(const struct gpw_nccl *n, const struct gp_communicator *comm, char *text,
                       uint32_t room)
{
    const char *said = n->why;
    if (!*said && n->library.ncclGetLastError)
        said = n->library.ncclGetLastError(comm ? comm->real : NULL);
    size_t length = strnlen(said ? said : "", room - 1);
    if (length)
        memcpy(text, said, length);
}

CUresult gpw_nccl_bytes(struct gpw_session *s, enum gpw_nccl_what what, gp_communicator comm,
                        int32_t *result, uint8_t *bytes, uint32_t *n)
{
    CUcontext before = NULL;
    const struct gpw_nccl *found = gpw_nccl(s);
    memset(bytes, 0, *n);
    s->driver->cuCtxGetCurrent(&before);
    *result = !found                ? ncclSystemError
              : what == GPW_NCCL_ID ? (int32_t)id_make(s, found, bytes)
                                    : ncclSuccess;
    s->driver->cuCtxSetCurrent(before);
    if (found && what == GPW_NCCL_ERROR)
        error_tell(found, comm, (char *)bytes, *n);
    return CUDA_SUCCESS;
}
