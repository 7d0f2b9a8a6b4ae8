/*
 * A process that shares memory and opens what others share, as it is told, a line for each thing;
 * it answers with a line, which is the error's name where there is one:
 *
 *   take MIB      cuMemAlloc: `handle HEX`
 *   free          the one that was allocated last: `freed`
 *   open HEX      another process's: `opened`
 *   fill N, read  the words of what is open, or else of its own: `filled`, `holds N`
 *   close         what is open: `closed`
 *   export MIB    cuMemCreate, as a file: `file PATH`
 *   release       its handle: `released`
 *   import PATH   of another process's file: `imported`
 *   drop          what was imported: `dropped`
 *   pool MIB      a pool, as a file, and memory of it: `pool PATH HEX`
 *   leave         the pool goes: `left`
 *   piece PATH HEX  of another process's pool: `opened`, and `put` ends it: `put`
 *   event         `handle HEX`
 *   watch HEX     another process's event: `watched`
 *   end           in order
 */
#include "driver.h"

#include <fcntl.h>
#include <unistd.h>

static CUdeviceptr own, opened;
static CUmemGenericAllocationHandle made, imported;
static CUmemoryPool pool;

static void answer(CUresult r, const char *said)
{
    SAY("%s", r == CUDA_SUCCESS ? said : driver_name(r));
}

static void hex(const void *handle, char text[2 * CU_IPC_HANDLE_SIZE + 1])
{
    for (unsigned i = 0; i < CU_IPC_HANDLE_SIZE; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)handle)[i]);
}

static void handle_say(CUresult r, const char handle[CU_IPC_HANDLE_SIZE])
{
    char text[2 * CU_IPC_HANDLE_SIZE + 1];
    hex(handle, text);
    if (r == CUDA_SUCCESS)
        SAY("handle %s", text);
    else
        SAY("%s", driver_name(r));
}

static void handle_read(const char *text, char handle[CU_IPC_HANDLE_SIZE])
{
    for (unsigned i = 0; i < CU_IPC_HANDLE_SIZE; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        handle[i] = (char)byte;
    }
}

static void take(size_t mib)
{
    CUipcMemHandle handle;
    CUresult r = cuMemAlloc(&own, mib << 20);
    if (r == CUDA_SUCCESS)
        r = cuIpcGetMemHandle(&handle, own);
    handle_say(r, handle.reserved);
}

static void open_one(const char *text)
{
    CUipcMemHandle handle;
    handle_read(text, handle.reserved);
    answer(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "opened");
}

/* Another process is told of it: so it is done then. */
static void fill(unsigned value)
{
    CUresult r = cuMemsetD32(opened ? opened : own, value, 1);
    answer(r ? r : cuCtxSynchronize(), "filled");
}

static void read_one(void)
{
    unsigned word = 0;
    CUresult r = cuMemcpyDtoH(&word, opened ? opened : own, sizeof word);
    if (r == CUDA_SUCCESS)
        SAY("holds %u", word);
    else
        SAY("%s", driver_name(r));
}

static void close_one(void)
{
    CUresult r = cuIpcCloseMemHandle(opened);
    opened = 0;
    answer(r, "closed");
}

static void export_one(size_t mib)
{
    CUmemAllocationProp p = {0};
    int file = -1;
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult r = cuMemCreate(&made, mib << 20, &p, 0);
    if (r == CUDA_SUCCESS)
        r = cuMemExportToShareableHandle(&file, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r == CUDA_SUCCESS)
        SAY("file /proc/%d/fd/%d", (int)getpid(), file);
    else
        SAY("%s", driver_name(r));
}

static void import_one(const char *path)
{
    int file = open(path, O_RDONLY);
    REQUIRE(file >= 0, "there is no %s", path);
    answer(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
           "imported");
    close(file);
}

static void pool_take(size_t mib)
{
    CUmemPoolPtrExportData data;
    CUmemPoolProps props = {0};
    char text[2 * CU_IPC_HANDLE_SIZE + 1];
    int file = -1;
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuMemPoolCreate(&pool, &props));
    CU(cuMemPoolExportToShareableHandle(&file, pool, props.handleTypes, 0));
    CUresult r = cuMemAllocFromPoolAsync(&own, mib << 20, pool, NULL);
    if (r == CUDA_SUCCESS)
        r = cuMemPoolExportPointer(&data, own);
    hex(&data, text);
    if (r == CUDA_SUCCESS)
        SAY("pool /proc/%d/fd/%d %s", (int)getpid(), file, text);
    else
        SAY("%s", driver_name(r));
}

static void piece_open(char *path)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool theirs;
    char *text = strchr(path, ' ');
    REQUIRE(text, "a piece has no name");
    *text++ = '\0';
    handle_read(text, (char *)&data);
    int file = open(path, O_RDONLY);
    REQUIRE(file >= 0, "there is no %s", path);
    CUresult r = cuMemPoolImportFromShareableHandle(&theirs, (void *)(intptr_t)file,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r == CUDA_SUCCESS)
        r = cuMemPoolImportPointer(&opened, theirs, &data);
    answer(r, "opened");
    close(file);
}

static void piece_put(void)
{
    CUresult r = cuMemFree(opened);
    opened = 0;
    answer(r, "put");
}

static void event(void)
{
    CUipcEventHandle handle;
    CUevent made_event;
    CUresult r = cuEventCreate(&made_event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (r == CUDA_SUCCESS)
        r = cuIpcGetEventHandle(&handle, made_event);
    handle_say(r, handle.reserved);
}

static void watch(const char *text)
{
    CUipcEventHandle handle;
    CUevent event_there;
    handle_read(text, handle.reserved);
    answer(cuIpcOpenEventHandle(&event_there, handle), "watched");
}

static void obey(const char *word, char *rest)
{
    if (strcmp(word, "take") == 0)
        take(strtoul(rest, NULL, 0));
    else if (strcmp(word, "free") == 0)
        answer(cuMemFree(own), "freed");
    else if (strcmp(word, "open") == 0)
        open_one(rest);
    else if (strcmp(word, "fill") == 0)
        fill((unsigned)strtoul(rest, NULL, 0));
    else if (strcmp(word, "read") == 0)
        read_one();
    else if (strcmp(word, "close") == 0)
        close_one();
    else if (strcmp(word, "export") == 0)
        export_one(strtoul(rest, NULL, 0));
    else if (strcmp(word, "release") == 0)
        answer(cuMemRelease(made), "released");
    else if (strcmp(word, "import") == 0)
        import_one(rest);
    else if (strcmp(word, "drop") == 0)
        answer(cuMemRelease(imported), "dropped");
    else if (strcmp(word, "pool") == 0)
        pool_take(strtoul(rest, NULL, 0));
    else if (strcmp(word, "leave") == 0)
        answer(cuMemPoolDestroy(pool), "left");
    else if (strcmp(word, "piece") == 0)
        piece_open(rest);
    else if (strcmp(word, "put") == 0)
        piece_put();
    else if (strcmp(word, "event") == 0)
        event();
    else if (strcmp(word, "watch") == 0)
        watch(rest);
    else
        REQUIRE(0, "no such thing: %s", word);
}

int main(void)
{
    char line[512];
    driver_start();
    SAY("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        char *rest = strchr(line, ' ');
        if (strcmp(line, "end") == 0)
            break;
        if (rest)
            *rest++ = '\0';
        obey(line, rest ? rest : line + strlen(line));
    }
    driver_stop();
    return finish("driver_ipc_talk");
}
