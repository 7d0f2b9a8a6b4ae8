#include "front_end.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ask.h"
#include "gp_ops.h"
#include "request.h"
#include "wire.h"

/* A server that is there may not be run for as long on a busy machine. */
#define ASK_TIMEOUT_MS 30000

/* The program's name in plain ASCII: a line of text must stay one, and UTF-8. */
static void program_name(char *out, size_t size)
{
    const char *name = program_invocation_short_name;
    size_t n = 0;
    for (; name && *name && n + 1 < size; name++)
        out[n++] = (unsigned char)*name < 32 || (unsigned char)*name > 126 ? '?' : *name;
    out[n] = '\0';
}

static int hex_bytes(const char *text, uint8_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1)
            return -1;
        out[i] = (uint8_t)value;
    }
    return text[2 * count] == '\0' ? 0 : -1;
}

static int take_line(const char *key, const char *value, struct gpc_admission *out, char code[32],
                     char *why, size_t why_size)
{
    if (strcmp(key, "session") == 0)
        return gpc_answer_keep(out->session, sizeof out->session, value);
    if (strcmp(key, "shm") == 0)
        return gpc_answer_keep(out->shm, sizeof out->shm, value);
    if (strcmp(key, "tcp") == 0)
        return gpc_answer_keep(out->tcp, sizeof out->tcp, value);
    if (strcmp(key, "zmq") == 0)
        return gpc_answer_keep(out->zmq, sizeof out->zmq, value);
    if (strcmp(key, "ucx") == 0)
        return gpc_answer_keep(out->ucx, sizeof out->ucx, value);
    if (strcmp(key, "boot-id") == 0)
        return gpc_answer_keep(out->boot_id, sizeof out->boot_id, value);
    if (strcmp(key, "simulated") == 0) {
        out->simulated = strcmp(value, "1") == 0;
        return 0;
    }
    if (strcmp(key, "visible") == 0) {
        out->visible = strcmp(value, "1") == 0;
        return 0;
    }
    if (strcmp(key, "note") == 0) {
        snprintf(out->note, sizeof out->note, "%s", value);
        return 0;
    }
    if (strcmp(key, "secret") == 0)
        return strlen(value) == 32 ? hex_bytes(value, out->secret, 16) : -1;
    if (strcmp(key, "code") == 0)
        return gpc_answer_keep(code, 32, value);
    if (strcmp(key, "message") == 0)
        snprintf(why, why_size, "%s", value);
    return 0; /* keys of a newer server are none of our business */
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Only what workers listen at: no other way leads anywhere. */
static bool addresses_right(const struct gpc_admission *a)
{
    return (!a->shm[0] || begins(a->shm, "shm:///")) &&
           (!a->tcp[0] || begins(a->tcp, "tls://") || begins(a->tcp, "plain://")) &&
           (!a->zmq[0] || begins(a->zmq, "tcp://") || begins(a->zmq, "ipc:///")) &&
           (!a->ucx[0] || begins(a->ucx, "ucx://"));
}

int gpc_front_end_parse(const char *answer, size_t size, struct gpc_admission *out, char code[32],
                        char *why, size_t why_size)
{
    memset(out, 0, sizeof *out);
    code[0] = '\0';
    snprintf(why, why_size, "its answer is not one of gpupool's");
    char text[GPC_ANSWER_MAX];
    struct gpc_answer lines;
    int refused = gpc_answer_open(&lines, answer, size, text), more;
    if (refused < 0)
        return -1;
    const char *key, *value;
    while ((more = gpc_answer_next(&lines, &key, &value)) > 0)
        if (take_line(key, value, out, code, why, why_size) != 0)
            return -1;
    if (more < 0)
        return -1;
    if (refused)
        return 1;
    bool any = out->shm[0] || out->tcp[0] || out->zmq[0] || out->ucx[0];
    return out->session[0] && any && addresses_right(out) ? 0 : -1;
}

static CUresult refusal_error(const char *code)
{
    if (strcmp(code, "bad-token") == 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if (strcmp(code, "version") == 0)
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (strcmp(code, "bad-request") == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (strcmp(code, "full") == 0 || strcmp(code, "busy") == 0 || strcmp(code, "draining") == 0 ||
        strcmp(code, "over-quota") == 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return CUDA_ERROR_NO_DEVICE;
}

/* Who asks a server by its key is not to be sent on in clear. */
static bool secrecy_lost(const char *server, const struct gpc_admission *a)
{
    return strstr(server, "?key=") && ((a->zmq[0] && !strstr(a->zmq, "?key=")) ||
                                       (a->tcp[0] && !begins(a->tcp, "tls://")) || a->ucx[0]);
}

CUresult gpc_front_end_ask(const char *server, const char *token, const struct gpc_reach *reach,
                           const char *plugin_dir, struct gpc_admission *out, char *why,
                           size_t why_size)
{
    char program[128], host[128] = "", boot[64], question[GPC_ANSWER_MAX];
    program_name(program, sizeof program);
    gethostname(host, sizeof host - 1);
    gpc_boot_id(boot);
    int n = snprintf(question, sizeof question,
                     "GPUPOOL/1 hello\nwire: %u\nwire-oldest: %u\ntoken: %s\npid: %d\n"
                     "program: %s\nhost: %s\nboot-id: %s\nways:%s%s%s%s\nservers: %u\n%s%s%s",
                     GP_WIRE_VERSION, GP_WIRE_OLDEST, token, (int)getpid(), program, host, boot,
                     reach->shm ? " shm" : "", reach->tcp ? " tcp" : "", reach->zmq ? " zmq" : "",
                     reach->ucx ? " ucx" : "", reach->servers, reach->visible ? "visible: " : "",
                     reach->visible ? reach->visible : "", reach->visible ? "\n" : "");
    if (n < 0 || (size_t)n >= sizeof question) {
        snprintf(why, why_size, "GPUPOOL_TOKEN is too long");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    int request = gpc_request_fields(question + n, sizeof question - (size_t)n, why, why_size);
    if (request < 0)
        return CUDA_ERROR_INVALID_VALUE;
    n += request;
    char answer[GPC_ANSWER_MAX];
    int size = gpc_ask(server, plugin_dir, question, (size_t)n, ASK_TIMEOUT_MS, answer, why,
                       why_size);
    if (size < 0)
        return CUDA_ERROR_NO_DEVICE;
    char code[32], text[512];
    int parsed = gpc_front_end_parse(answer, (size_t)size, out, code, text, sizeof text);
    if (parsed == 0 && !secrecy_lost(server, out))
        return CUDA_SUCCESS;
    if (parsed == 0)
        snprintf(text, sizeof text,
                 "it encrypts, but offers a worker that does not; do the "
                 "releases of server and worker match?");
    snprintf(why, why_size, "%.*s: %s", (int)strcspn(server, "?"), server, text);
    return parsed > 0 ? refusal_error(code) : CUDA_ERROR_NO_DEVICE;
}
