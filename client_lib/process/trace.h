/*
 * GPUPOOL_TRACE=FILE: a line per call with every argument, what came back and how
 * long it took. The generated gpc_trace_calls.c holds the exported functions; with
 * the trace on they describe the call here, with it off they cost one branch.
 *
 *     microseconds thread name(argument=value, ...) = RESULT, *argument=value (N us)
 *
 * The part up to the `)` is written before the call is made, so that a call which
 * hangs or crashes can be seen. Where calls of several threads overlap, the first
 * part ends in `<unfinished ...>` and the rest follows behind `<... name resumed>`.
 */
#ifndef GPC_TRACE_H
#define GPC_TRACE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPC_TRACE_TEXT 64   /* characters of a string */
#define GPC_TRACE_LIST 8    /* elements of an array */
#define GPC_TRACE_LINE 2048 /* bytes of half a line; more is cut */

struct gpc_trace {
    const char *name;
    uint64_t began_ns;
    size_t used;
    const char *separator;
    char text[GPC_TRACE_LINE];
};

/* Begin the description of a call; the arguments follow, then gpc_trace_called. */
void gpc_trace_begin(struct gpc_trace *t, const char *name);
/* Write what is there, before the call is made. */
void gpc_trace_called(struct gpc_trace *t);
/* Begin the second half; true: outputs are filled and may be described. */
/* As the header has it; NULL: it has none. */
const char *gpc_result_name(CUresult r);
bool gpc_trace_returned(struct gpc_trace *t, CUresult result);
/* Write the second half. */
void gpc_trace_end(struct gpc_trace *t);

/* `label=` of the next value: what is given is as it stands in the source. */
void gpc_trace_label(struct gpc_trace *t, const char *label);

void gpc_trace_signed(struct gpc_trace *t, long long value);
void gpc_trace_unsigned(struct gpc_trace *t, unsigned long value);
void gpc_trace_hex(struct gpc_trace *t, unsigned long long value);
void gpc_trace_float(struct gpc_trace *t, double value);
void gpc_trace_pointer(struct gpc_trace *t, const void *value);
/* Quoted, cut to GPC_TRACE_TEXT characters; NULL is possible. */
void gpc_trace_text(struct gpc_trace *t, const char *value);
void gpc_trace_uuid(struct gpc_trace *t, const CUuuid *value);
/* A pointer and how many bytes the caller says are there. */
void gpc_trace_bytes(struct gpc_trace *t, const void *from, unsigned long long count);
/* A piece of text as it is. */
void gpc_trace_raw(struct gpc_trace *t, const char *text);
/* Between, before and after the elements of a list of `count`. */
void gpc_trace_next(struct gpc_trace *t, unsigned long long index);
void gpc_trace_list_end(struct gpc_trace *t, unsigned long long count);

/* Numbers of 64 bits that CUDA spells `unsigned long long` are addresses, handles
 * and masks; sizes are size_t. Enumerations are numbers; handles are pointers. */
#define GPC_TRACE_VALUE(t, value)                                                                  \
    _Generic((value),                                                                              \
        char: gpc_trace_signed,                                                                    \
        signed char: gpc_trace_signed,                                                             \
        short: gpc_trace_signed,                                                                   \
        int: gpc_trace_signed,                                                                     \
        long: gpc_trace_signed,                                                                    \
        long long: gpc_trace_signed,                                                               \
        unsigned char: gpc_trace_unsigned,                                                         \
        unsigned short: gpc_trace_unsigned,                                                        \
        unsigned int: gpc_trace_unsigned,                                                          \
        unsigned long: gpc_trace_unsigned,                                                         \
        unsigned long long: gpc_trace_hex,                                                         \
        float: gpc_trace_float,                                                                    \
        double: gpc_trace_float,                                                                   \
        default: gpc_trace_pointer)((t), (value))

/* name=value */
#define GPC_TRACE_ARGUMENT(t, name)                                                                \
    do {                                                                                           \
        gpc_trace_label((t), #name);                                                               \
        GPC_TRACE_VALUE((t), name);                                                                \
    } while (0)

/* *name=value, if there is one */
#define GPC_TRACE_POINTEE(t, name)                                                                 \
    do {                                                                                           \
        if (name) {                                                                                \
            gpc_trace_label((t), "*" #name);                                                       \
            GPC_TRACE_VALUE((t), *(name));                                                         \
        }                                                                                          \
    } while (0)

/* name=[first, second, ...] */
#define GPC_TRACE_ARRAY(t, name, count)                                                            \
    do {                                                                                           \
        gpc_trace_label((t), #name);                                                               \
        if (!(name)) {                                                                             \
            gpc_trace_pointer((t), (name));                                                        \
            break;                                                                                 \
        }                                                                                          \
        const unsigned long long count_ = (unsigned long long)(count);                             \
        for (unsigned long long i_ = 0; i_ < count_ && i_ < GPC_TRACE_LIST; i_++) {                \
            gpc_trace_next((t), i_);                                                               \
            GPC_TRACE_VALUE((t), (name)[i_]);                                                      \
        }                                                                                          \
        gpc_trace_list_end((t), count_);                                                           \
    } while (0)

#endif
