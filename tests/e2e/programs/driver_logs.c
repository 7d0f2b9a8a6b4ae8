/* Errors in plain words: kept, dumped to memory and files, told to a function of the program. */
#include "driver.h"

#include <unistd.h>

#define REFUSED "Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2\n"

static int told, wrong;

static void CUDA_CB on_error(void *data, CUlogLevel level, char *message, size_t length)
{
    (void)level;
    wrong += data != &told || strlen(message) != length || strchr(message, '\n') != NULL;
    told += strstr(message, "cuMemAlloc_v2") != NULL;
}

static void refuse(void)
{
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 4));
}

/* [time][thread][CUDA][E] and what is said. */
static void expect_form(const char *line)
{
    unsigned hours, minutes, seconds, thousandths;
    unsigned long long thread;
    int said = 0;
    int n = sscanf(line, "[%2u:%2u:%2u.%3u][%llu][CUDA][E] %n", &hours, &minutes, &seconds,
                   &thousandths, &thread, &said);
    EXPECT(n == 5 && said > 0, "a line begins otherwise: '%s'", line);
}

static void to_memory(void)
{
    static char text[30000];
    size_t bytes = sizeof text;
    CUlogIterator at, before;
    CU(cuLogsCurrent(&at, 0));
    CU(cuLogsDumpToMemory(&at, text, &bytes, 0));
    EXPECT(bytes == 0 && text[0] == 0, "%zu bytes of messages that nobody made", bytes);
    refuse();
    before = at;
    bytes = sizeof text;
    CU(cuLogsDumpToMemory(&at, text, &bytes, 0));
    EXPECT(bytes == strlen(text) && strstr(text, REFUSED), "%zu bytes say '%s'", bytes, text);
    expect_form(text);
    bytes = sizeof text;
    CU(cuLogsDumpToMemory(&at, text, &bytes, 0));
    EXPECT(bytes == 0, "the same messages come again: '%s'", text);
    bytes = 8; /* too small for any */
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(&before, text, &bytes, 0));
    EXPECT(bytes == 0, "%zu bytes where none fit", bytes);
}

/* The oldest make room, and the newest is there always. */
static void too_many(void)
{
    static char text[30000];
    size_t bytes = sizeof text;
    for (int i = 0; i < 600; i++)
        (void)cuMemAlloc(NULL, 4);
    CU(cuLogsDumpToMemory(NULL, text, &bytes, 0));
    EXPECT(bytes > 5000 && bytes < 27000, "%zu bytes are kept", bytes);
    EXPECT(strcmp(text + bytes - strlen(REFUSED), REFUSED) == 0, "the last one is no refusal");
    bytes = 400; /* less than there is */
    CU(cuLogsDumpToMemory(NULL, text, &bytes, 0));
    if (driver_is_native()) /* it says more bytes than it was given */
        return;
    EXPECT(bytes > 0 && bytes < 400, "%zu bytes of 400", bytes);
    EXPECT(strcmp(text + bytes - strlen(REFUSED), REFUSED) == 0, "the last one is left out");
}

static void to_a_file(const char *directory)
{
    char path[256], line[2048] = "";
    CUlogIterator at;
    snprintf(path, sizeof path, "%s/driver_logs.%d", directory, (int)getpid());
    CU(cuLogsCurrent(&at, 0));
    refuse();
    CU(cuLogsDumpToFile(&at, path, 0));
    FILE *file = fopen(path, "r");
    REQUIRE(file && fgets(line, sizeof line, file), "there is nothing in %s", path);
    fclose(file);
    remove(path);
    expect_form(line);
}

static void to_a_function(void)
{
    CUlogsCallbackHandle handle = NULL;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsRegisterCallback(NULL, NULL, &handle));
    CU(cuLogsRegisterCallback(on_error, &told, &handle));
    refuse();
    refuse();
    CU(cuLogsUnregisterCallback(handle));
    refuse();
    EXPECT(told == 2 && wrong == 0, "the function was told of %d errors, %d of them wrongly", told,
           wrong);
}

static void refused(void)
{
    CUlogIterator at = 0;
    char text[8];
    size_t bytes = sizeof text;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(NULL, 0));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(&at, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(&at, NULL, &bytes, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(&at, text, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToFile(&at, NULL, 0));
}

int main(void)
{
    const char *directory = getenv("TMPDIR");
    driver_start();
    to_memory();
    to_a_function();
    to_a_file(directory && *directory ? directory : "/tmp");
    refused();
    too_many();
    driver_stop();
    return finish("driver_logs");
}
