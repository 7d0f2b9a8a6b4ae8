#include <stdarg.h>
#include <stdio.h>

#include "transport/transport.h"

void gp_error_set(struct gp_error *err, const char *format, ...)
{
    if (!err)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    /* Errors are one line, also when they quote something that is not. */
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}
