/* ncclGetUniqueId: a thread that waits for all ranks and tells each where the others are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "softnccl.h"

struct root {
    struct sn_door door;
    uint8_t secret[SN_SECRET_BYTES];
    uint32_t ranks, present; /* 0 ranks: nobody has said how many */
    int *connections;        /* of each rank, -1: it is not there yet */
    struct sn_place *places;
};

ncclResult_t sn_random(void *out, size_t size)
{
    if (getrandom(out, size, 0) != (ssize_t)size)
        return sn_fail(ncclSystemError, "no random numbers: %s", strerror(errno));
    return ncclSuccess;
}

static bool make_room(struct root *root, uint32_t ranks)
{
    root->connections = malloc(ranks * sizeof *root->connections);
    root->places = calloc(ranks, sizeof *root->places);
    if (!root->connections || !root->places)
        return false;
    for (uint32_t i = 0; i < ranks; i++)
        root->connections[i] = -1;
    root->ranks = ranks;
    return true;
}

static void refuse(const struct root *root, int fd, enum sn_refusal why)
{
    struct sn_table table = sn_table_make(root->ranks, why);
    sn_send(fd, &table, sizeof table, -1);
    close(fd);
}

static void take(struct root *root, int fd, const struct sn_hello *hello)
{
    if (hello->ranks != root->ranks) {
        refuse(root, fd, SN_OTHER_COUNT);
    } else if (root->connections[hello->rank] >= 0) {
        refuse(root, fd, SN_RANK_TWICE);
    } else {
        root->connections[hello->rank] = fd;
        root->places[hello->rank] = hello->place;
        root->present++;
    }
}

static void gather(struct root *root)
{
    while (!root->ranks || root->present < root->ranks) {
        unsigned char bytes[sizeof(struct sn_hello)];
        struct sn_hello hello;
        int fd = sn_door_next(&root->door, bytes);
        if (fd < 0)
            return;
        if (!sn_hello_decode(bytes, &hello))
            close(fd);
        else if (root->ranks || make_room(root, hello.ranks))
            take(root, fd, &hello);
        else
            close(fd);
    }
}

static void tell_all(struct root *root)
{
    struct sn_table table = sn_table_make(root->ranks, SN_TAKEN);
    bool whole = root->ranks && root->present == root->ranks;
    for (uint32_t i = 0; i < root->ranks; i++) {
        int fd = root->connections[i];
        if (whole && sn_send(fd, &table, sizeof table, -1) == 0)
            sn_send(fd, root->places, root->ranks * sizeof *root->places, -1);
        if (fd >= 0)
            close(fd);
    }
}

static void root_free(struct root *root)
{
    sn_door_close(&root->door);
    close(root->door.listener);
    free(root->connections);
    free(root->places);
    free(root);
}

static void *root_main(void *argument)
{
    struct root *root = argument;
    gather(root);
    tell_all(root);
    root_free(root);
    return NULL;
}

static ncclResult_t root_start(struct root *root)
{
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, root_main, root);
    if (failed)
        return sn_fail(ncclSystemError, "cannot start a thread: %s", strerror(failed));
    pthread_detach(thread);
    return ncclSuccess;
}

static ncclResult_t root_open(struct root *root, struct sn_id *id)
{
    SN_TRY(sn_random(root->secret, sizeof root->secret));
    memcpy(id->secret, root->secret, sizeof id->secret);
    int listener = sn_listen(&id->root);
    if (listener < 0)
        return sn_fail(ncclSystemError,
                       "cannot listen for ranks: %s; NCCL_SOCKET_IFNAME names an interface",
                       strerror(-listener));
    root->door.listener = listener;
    root->door.wake = -1;
    root->door.secret = root->secret;
    root->door.size = sizeof(struct sn_hello);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    struct sn_id id = {0};
    if (!uniqueId)
        return sn_fail(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    struct root *root = calloc(1, sizeof *root);
    if (!root)
        return sn_fail(ncclSystemError, "no memory");
    root->door.listener = -1;
    ncclResult_t result = root_open(root, &id);
    if (result == ncclSuccess)
        result = root_start(root);
    if (result != ncclSuccess) {
        root_free(root);
        return result;
    }
    sn_id_encode(&id, uniqueId->internal);
    return ncclSuccess;
}
