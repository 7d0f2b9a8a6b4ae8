/*
 * A board of which another process has written any bytes: no call crashes or hangs. The input
 * is a list of writes: 2 bytes where (in words of 4), 1 byte how many words, and the words.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "board_calls.h"
#include "board_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gp_board *board;
static struct board_file good;
static int members[3];

static void start(void)
{
    char path[64];
    int fd = memfd_create("board", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gp_board_open(path, &board) != 0 || board_furnish(board, members) != 0)
        abort();
    good = *board->file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!board)
        start();
    *board->file = good;
    while (size >= 3) {
        uint16_t at;
        memcpy(&at, data, sizeof at);
        size_t bytes = (size_t)data[2] * 4, begin = (size_t)at * 4 % sizeof good;
        data += 3, size -= 3;
        bytes = bytes > size ? size : bytes;
        bytes = bytes > sizeof good - begin ? sizeof good - begin : bytes;
        memcpy((char *)board->file + begin, data, bytes);
        data += bytes, size -= bytes;
    }
    board_call_all(board, members);
    return 0;
}
