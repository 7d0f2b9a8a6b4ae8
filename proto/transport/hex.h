/* Bytes as hexadecimal digits 0-9 a-f: the words and keys behind an address. */
#ifndef GP_TRANSPORT_HEX_H
#define GP_TRANSPORT_HEX_H

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static inline int gp_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Exactly `bytes` of them: 0 or -EINVAL. */
static inline int gp_hex_read(const char *hex, unsigned char *out, size_t bytes)
{
    if (strlen(hex) != 2 * bytes)
        return -EINVAL;
    for (size_t i = 0; i < bytes; i++) {
        int high = gp_hex_digit(hex[2 * i]), low = gp_hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -EINVAL;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

/* Returns where the text ends. */
static inline char *gp_hex_show(const unsigned char *from, size_t bytes, char *at)
{
    for (size_t i = 0; i < bytes; i++)
        at += snprintf(at, 3, "%02x", from[i]);
    return at;
}

#endif
