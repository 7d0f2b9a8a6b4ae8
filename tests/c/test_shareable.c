/* Memory that several processes have: what another worker says of it, and who is charged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handles.h"
#include "ipc.h"
#include "quota.h"
#include "ticket.h"

#define GRANULE (UINT64_C(2) << 20)
#define UUID "000102030405060708090a0b0c0d0e0f"
#define MEMORY 77 /* the driver's handle */

/* --- what stands in for the worker around it ------------------------------------------------ */

static struct {
    uint64_t charged, limit;
    unsigned opened; /* handles of memory that are not released */
    bool other_device;
} gpu;

bool gpw_quota_take(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    if (gpu.charged + bytes > gpu.limit)
        return false;
    gpu.charged += bytes;
    return true;
}

void gpw_quota_give(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    assert_true(bytes <= gpu.charged);
    gpu.charged -= bytes;
}

uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    (void)s, (void)kind, (void)real;
    return 0;
}

static CUresult fake_uuid(CUuuid *uuid, CUdevice device)
{
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(i + (device != 5));
    return CUDA_SUCCESS;
}

static CUresult fake_export(void *out, CUmemGenericAllocationHandle memory,
                            CUmemAllocationHandleType type, unsigned long long flags)
{
    assert_int_equal(memory, MEMORY);
    assert_int_equal(type + flags, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *(int *)out = memfd_create("memory", MFD_CLOEXEC);
    return CUDA_SUCCESS;
}

static CUresult fake_import(CUmemGenericAllocationHandle *memory, void *file,
                            CUmemAllocationHandleType type)
{
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (fcntl((int)(intptr_t)file, F_GETFD) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *memory = MEMORY;
    gpu.opened++;
    return CUDA_SUCCESS;
}

static CUresult fake_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle memory)
{
    (void)memory;
    memset(prop, 0, sizeof *prop);
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = gpu.other_device ? 6 : 5;
    return CUDA_SUCCESS;
}

static CUresult fake_release(CUmemGenericAllocationHandle memory)
{
    assert_int_equal(memory, MEMORY);
    gpu.opened--;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {
    .cuDeviceGetUuid_v2 = fake_uuid,
    .cuMemExportToShareableHandle = fake_export,
    .cuMemImportFromShareableHandle = fake_import,
    .cuMemGetAllocationPropertiesFromHandle = fake_properties,
    .cuMemRelease = fake_release,
};

static struct gpw_session session;
static struct gpw_ipc ipc;

static const struct gp_ipc_name theirs = {.token = "another's token",
                                          .session = "other",
                                          .kind = GP_IPC_MEMORY,
                                          .magic = GP_IPC_MAGIC};

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    gpu.limit = 64 * GRANULE;
    ipc = (struct gpw_ipc){.session = "own", .server = -1};
    pthread_mutex_init(&ipc.lock, NULL);
    session = (struct gpw_session){
        .driver = &driver, .ipc = &ipc, .device_count = 1, .devices = {5}};
    return 0;
}

/* --- another process with the same ticket ------------------------------------------------------ */

struct other {
    pid_t pid;
    int ticket;
};

/* It has the ticket, as owner, as user or both, until it is ended. */
static struct other other_with(int ticket, bool owns, bool uses)
{
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool well = (!owns || gpw_ticket_own(ticket)) && (!uses || gpw_ticket_use(ticket));
        if (write(ready[1], well ? "y" : "n", 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    close(ready[0]);
    return (struct other){pid, ticket};
}

static void end_other(const struct other *other)
{
    kill(other->pid, SIGKILL);
    waitpid(other->pid, NULL, 0);
}

static int file(void)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static struct gpw_shareable *bring(int ticket)
{
    const int fds[GPW_SHAREABLE_FDS] = {file(), dup(ticket)};
    assert_int_equal(gpw_shareable_brought(&session, &theirs, "memory 2097152 " UUID, fds),
                     CUDA_SUCCESS);
    return gpw_shareable_find(&session, &theirs);
}

static void take(struct gpw_shareable *one)
{
    CUmemGenericAllocationHandle memory;
    assert_int_equal(gpw_shareable_open(&session, one, &memory), CUDA_SUCCESS);
    assert_int_equal(memory, MEMORY);
}

/* --- what is said ---------------------------------------------------------------------------- */

/* It is not taken over, and what came with it is closed. */
static void refused(const char *line, enum gp_ipc_kind kind, unsigned came)
{
    struct gp_ipc_name name = theirs;
    int fds[GPW_SHAREABLE_FDS] = {-1, -1};
    name.kind = kind;
    for (unsigned i = 0; i < came; i++)
        fds[i] = file();
    if (gpw_shareable_brought(&session, &name, line, fds) == CUDA_SUCCESS)
        fail_msg("'%s' was taken", line);
    for (unsigned i = 0; i < came; i++)
        assert_true(fcntl(fds[i], F_GETFD) < 0 && errno == EBADF);
    assert_int_equal(ipc.count, 0);
}

static void lines_that_are_none(void **state)
{
    static const char *const wrong[] = {
        "",
        "none",
        "memory",
        "memory 2097152",
        "memory 0 " UUID,
        "memory 2097153 " UUID,
        "memory -2097152 " UUID,
        "memory 18446744073707454464 " UUID,
        "memory 2097152 " UUID "00",
        "memory 2097152 0001",
        "memory 2097152 100102030405060708090a0b0c0d0e0f",
        "event 00",
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        refused(wrong[i], GP_IPC_MEMORY, 2);
        refused(wrong[i], GP_IPC_EVENT, 2);
        refused(wrong[i], GP_IPC_POOL, 0);
    }
    refused("memory 2097152 " UUID, GP_IPC_EVENT, 2);
    refused("memory 2097152 " UUID, GP_IPC_POOL, 0);
    refused("pool " UUID, GP_IPC_MEMORY, 2);
    refused("pool " UUID, GP_IPC_POOL, 2);
    refused("pool " UUID "00", GP_IPC_POOL, 0);
    refused("pool 100102030405060708090a0b0c0d0e0f", GP_IPC_POOL, 0);
    refused("memory 2097152 " UUID, GP_IPC_MEMORY, 1);
    refused("memory 2097152 " UUID, GP_IPC_MEMORY, 0);
}

/* It is named once, and by nothing else of its device; what is brought is no memory. */
static void pools_have_no_memory(void **state)
{
    static const int none[GPW_SHAREABLE_FDS] = {-1, -1};
    const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)16;
    struct gp_ipc_name name = theirs;
    struct gpw_shareable *one, *again;
    CUmemGenericAllocationHandle memory;
    (void)state;
    assert_int_equal(gpw_shareable_pool(&session, pool, 0, &one), CUDA_SUCCESS);
    assert_int_equal(gpw_shareable_pool(&session, pool, 0, &again), CUDA_SUCCESS);
    assert_ptr_equal(one, again);
    gpw_shareable_gone(&session, GPW_SHARES_EVENT, pool);
    assert_int_equal(ipc.count, 1);
    gpw_shareable_gone(&session, GPW_SHARES_POOL, pool);
    assert_int_equal(ipc.count, 0);
    name.kind = GP_IPC_POOL;
    assert_int_equal(gpw_shareable_brought(&session, &name, "pool " UUID, none), CUDA_SUCCESS);
    one = gpw_shareable_find(&session, &name);
    assert_int_equal(gpw_shareable_open(&session, one, &memory), CUDA_ERROR_INVALID_VALUE);
    gpw_shareable_drop(&session, one);
    assert_int_equal(ipc.count, 0);
}

static void there_is_an_end_to_it(void **state)
{
    struct gpw_shareable *one;
    (void)state;
    ipc.count = GPW_SHAREABLES_MAX;
    assert_int_equal(gpw_shareable_memory(&session, MEMORY, 0, GRANULE, &one),
                     CUDA_ERROR_OUT_OF_MEMORY);
    ipc.count = 0;
}

static void what_is_told_of_a_token(void **state)
{
    struct gpw_shareable *one;
    struct gp_ipc_name name;
    char token[2 * GPW_TOKEN_BYTES + 1], said[GPW_SHAREABLE_LINE];
    int pair[2];
    (void)state;
    gpu.charged = GRANULE;
    assert_int_equal(gpw_shareable_memory(&session, MEMORY, 0, GRANULE, &one), CUDA_SUCCESS);
    gpw_shareable_name(one, &name);
    for (unsigned i = 0; i < GPW_TOKEN_BYTES; i++)
        sprintf(token + 2 * i, "%02x", name.token[i]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    gpw_shareable_tell(&session, token, pair[0]);
    said[read(pair[1], said, sizeof said - 1)] = '\0';
    assert_string_equal(said, "memory 2097152 " UUID "\n");
    token[0] = token[0] == '0' ? '1' : '0';
    const char *const none[] = {token, "", "x", "00"};
    for (unsigned i = 0; i < 4; i++) {
        gpw_shareable_tell(&session, none[i], pair[0]);
        said[read(pair[1], said, sizeof said - 1)] = '\0';
        assert_string_equal(said, "none\n");
    }
    gpw_shareable_let_go(&session, one);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(ipc.count, 0);
}

/* --- who is charged ----------------------------------------------------------------------------- */

static void the_owner_pays_while_it_lives(void **state)
{
    (void)state;
    int ticket = file();
    struct other maker = other_with(ticket, true, true);
    struct gpw_shareable *one = bring(ticket);
    take(one);
    gpw_shareables_tick(&session);
    assert_int_equal(gpu.charged, 0);
    end_other(&maker);
    gpw_shareables_tick(&session);
    assert_int_equal(gpu.charged, GRANULE);
    assert_false(session.ended);
    gpw_shareable_let_go(&session, one);
    assert_int_equal(gpu.charged, 0);
    assert_int_equal(ipc.count, 0);
    close(ticket);
}

static void who_cannot_pay_for_what_the_owner_left_ends(void **state)
{
    (void)state;
    int ticket = file();
    struct other maker = other_with(ticket, true, true);
    struct gpw_shareable *one = bring(ticket);
    take(one);
    gpu.limit = 0;
    end_other(&maker);
    gpw_shareables_tick(&session);
    assert_true(session.ended);
    gpw_shareable_let_go(&session, one);
    close(ticket);
}

static void memory_that_nobody_owns_must_fit(void **state)
{
    CUmemGenericAllocationHandle memory;
    (void)state;
    int ticket = file();
    struct gpw_shareable *one = bring(ticket);
    gpu.limit = 0;
    assert_int_equal(gpw_shareable_open(&session, one, &memory), CUDA_ERROR_OUT_OF_MEMORY);
    gpu.limit = GRANULE;
    take(one);
    assert_int_equal(gpu.charged, GRANULE);
    gpw_shareable_let_go(&session, one);
    assert_int_equal(gpu.charged, 0);
    close(ticket);
}

static void memory_of_another_device_than_was_said(void **state)
{
    CUmemGenericAllocationHandle memory;
    (void)state;
    int ticket = file();
    struct gpw_shareable *one = bring(ticket);
    gpu.other_device = true;
    assert_int_equal(gpw_shareable_open(&session, one, &memory), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.opened, 0);
    assert_int_equal(gpu.charged, 0);
    struct other other = other_with(ticket, true, false); /* it may be another's to pay for */
    end_other(&other);
    gpw_shareable_drop(&session, one);
    close(ticket);
}

static void what_others_have_is_charged_behind_its_end(void **state)
{
    struct gpw_shareable *one;
    struct gp_ipc_name name;
    (void)state;
    gpu.charged = GRANULE; /* it was allocated */
    assert_int_equal(gpw_shareable_memory(&session, MEMORY, 0, GRANULE, &one), CUDA_SUCCESS);
    gpw_shareable_name(one, &name);
    struct other user = other_with(one->ticket, false, true);
    gpw_shareable_let_go(&session, one);
    gpw_shareables_tick(&session);
    assert_int_equal(gpu.charged, GRANULE);
    end_other(&user);
    gpw_shareables_tick(&session);
    assert_int_equal(gpu.charged, 0);
    assert_null(gpw_shareable_find(&session, &name));
}

static void what_is_never_taken_is_forgotten(void **state)
{
    (void)state;
    int ticket = file();
    bring(ticket);
    for (unsigned i = 0; ipc.count && i < 10000; i++)
        gpw_shareables_tick(&session);
    assert_int_equal(ipc.count, 0);
    assert_int_equal(gpu.charged, 0);
    close(ticket);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(lines_that_are_none, begin),
        cmocka_unit_test_setup(pools_have_no_memory, begin),
        cmocka_unit_test_setup(there_is_an_end_to_it, begin),
        cmocka_unit_test_setup(what_is_told_of_a_token, begin),
        cmocka_unit_test_setup(the_owner_pays_while_it_lives, begin),
        cmocka_unit_test_setup(who_cannot_pay_for_what_the_owner_left_ends, begin),
        cmocka_unit_test_setup(memory_that_nobody_owns_must_fit, begin),
        cmocka_unit_test_setup(memory_of_another_device_than_was_said, begin),
        cmocka_unit_test_setup(what_others_have_is_charged_behind_its_end, begin),
        cmocka_unit_test_setup(what_is_never_taken_is_forgotten, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
