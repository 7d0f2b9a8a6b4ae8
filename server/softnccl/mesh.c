/* How the ranks of a communicator find each other: each says hello to the root, learns where all are,
 * connects to those before it and waits for those behind. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "monotonic.h"
#include "softnccl.h"

ncclResult_t sn_mesh_listen(ncclComm_t comm)
{
    int listener = sn_listen(&comm->place.address);
    if (listener < 0)
        return sn_fail(ncclSystemError,
                       "cannot listen for ranks: %s; NCCL_SOCKET_IFNAME names an interface",
                       strerror(-listener));
    comm->listener = listener;
    return ncclSuccess;
}

static ncclResult_t refused(const struct sn_table *table, const struct ncclComm *comm)
{
    if (table->refused == SN_RANK_TWICE)
        return sn_fail(ncclInvalidUsage, "another process is rank %u of %u already", comm->rank,
                       comm->ranks);
    return sn_fail(ncclInvalidUsage, "rank %u says that there are %u ranks, and others say %u",
                   comm->rank, comm->ranks, table->ranks);
}

static int places_receive(ncclComm_t comm, int root)
{
    for (uint32_t i = 0; i < comm->ranks; i++) {
        unsigned char bytes[sizeof(struct sn_place)];
        int r = sn_receive(root, bytes, sizeof bytes, comm->wake);
        if (r < 0)
            return r;
        if (!sn_place_decode(bytes, &comm->places[i]))
            return -EPROTO;
    }
    return 0;
}

static ncclResult_t ask_root(ncclComm_t comm, int root, const struct sn_id *id)
{
    struct sn_hello hello = sn_hello_make(id->secret, comm->ranks, comm->rank, &comm->place);
    unsigned char bytes[sizeof(struct sn_table)];
    struct sn_table table;
    int r = sn_send(root, &hello, sizeof hello, comm->wake);
    if (r == 0)
        r = sn_receive(root, bytes, sizeof bytes, comm->wake);
    if (r < 0)
        return sn_comm_network(comm, r, "ask the root where all ranks are", comm->rank);
    if (!sn_table_decode(bytes, &table))
        return sn_comm_network(comm, -EPROTO, "read the root's answer", comm->rank);
    if (table.refused || table.ranks != comm->ranks)
        return refused(&table, comm);
    r = places_receive(comm, root);
    return r < 0 ? sn_comm_network(comm, r, "read where all ranks are", comm->rank) : ncclSuccess;
}

/* Two ranks that share a GPU could wait for each other for ever. */
static ncclResult_t check_devices(const struct ncclComm *comm)
{
    const struct sn_place *p = comm->places;
    for (uint32_t i = 0; i < comm->ranks; i++)
        for (uint32_t j = i + 1; j < comm->ranks; j++)
            if (p[i].host == p[j].host && memcmp(p[i].uuid, p[j].uuid, sizeof p[i].uuid) == 0)
                return sn_fail(ncclInvalidUsage,
                               "Duplicate GPU detected : rank %u and rank %u both on CUDA device "
                               "%u",
                               i, j, p[i].device);
    return ncclSuccess;
}

static ncclResult_t connect_to_lower(ncclComm_t comm, const uint8_t *secret)
{
    for (uint32_t to = 0; to < comm->rank; to++) {
        struct sn_join join = sn_join_make(secret, comm->rank, to);
        int fd = sn_connect(&comm->places[to].address, comm->wake);
        if (fd >= 0)
            comm->sockets[to] = fd;
        int r = fd < 0 ? fd : sn_send(fd, &join, sizeof join, comm->wake);
        if (r < 0)
            return sn_comm_network(comm, r, "connect to", to);
    }
    return ncclSuccess;
}

static ncclResult_t wait_for_higher(ncclComm_t comm, struct sn_door *door)
{
    for (uint32_t missing = comm->ranks - 1 - comm->rank; missing;) {
        unsigned char bytes[sizeof(struct sn_join)];
        struct sn_join join;
        int fd = sn_door_next(door, bytes);
        if (fd < 0)
            return sn_comm_network(comm, fd, "wait for ranks after", comm->rank);
        if (!sn_join_decode(bytes, &join) || join.to != comm->rank || join.from >= comm->ranks ||
            comm->sockets[join.from] >= 0) {
            close(fd);
        } else {
            comm->sockets[join.from] = fd;
            missing--;
        }
    }
    return ncclSuccess;
}

/* All ranks are there now, so none has anything to wait for: one that does not come has died since. */
ncclResult_t sn_mesh_join(ncclComm_t comm, const uint8_t *secret)
{
    struct sn_door door = {.listener = comm->listener,
                           .wake = comm->wake,
                           .secret = secret,
                           .size = sizeof(struct sn_join),
                           .until = gp_now_ns() +
                                    (uint64_t)sn_silence()->seconds * UINT64_C(1000000000)};
    SN_TRY(check_devices(comm));
    SN_TRY(connect_to_lower(comm, secret));
    ncclResult_t result = wait_for_higher(comm, &door);
    sn_door_close(&door);
    close(comm->listener);
    comm->listener = -1;
    return result;
}

ncclResult_t sn_mesh_meet(ncclComm_t comm, const struct sn_id *id)
{
    SN_TRY(sn_mesh_listen(comm));
    int root = sn_connect(&id->root, comm->wake);
    if (root < 0)
        return sn_comm_network(comm, root, "connect to the root for", comm->rank);
    ncclResult_t result = ask_root(comm, root, id);
    close(root);
    return result == ncclSuccess ? sn_mesh_join(comm, id->secret) : result;
}

void sn_mesh_close(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    for (uint32_t i = 0; comm->sockets && i < comm->ranks; i++) {
        if (comm->sockets[i] >= 0)
            close(comm->sockets[i]);
        comm->sockets[i] = -1;
    }
    if (comm->listener >= 0)
        close(comm->listener);
    comm->listener = -1;
    pthread_mutex_unlock(&comm->lock);
}
