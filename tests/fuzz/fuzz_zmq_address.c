/* An address with a key, as a server or a peer gives it, and a greeting of whoever listens
 * there: both from anybody. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/zmq_link.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ends(const struct link_endpoints *e)
{
    if (strnlen(e->up, sizeof e->up) == sizeof e->up ||
        strnlen(e->down, sizeof e->down) == sizeof e->down)
        abort();
    if (strstr(e->up, "?key=") || strstr(e->down, "?key="))
        abort();
}

/* What a listener shows of its key is read back as it was. */
static void check_key(const struct link_curve *curve)
{
    char query[LINK_QUERY_MAX], url[128], plain[2 * LINK_ENDPOINT_MAX];
    struct link_curve again;
    link_curve_show(curve, query);
    if ((curve->role == LINK_CLEAR) != (query[0] == '\0'))
        abort();
    snprintf(url, sizeof url, "tcp://h:1,2%s", query);
    if (link_curve_parse(url, false, plain, &again, NULL) != 0 ||
        memcmp(again.server, curve->server, sizeof again.server) != 0 ||
        strcmp(plain, "tcp://h:1,2") != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct gp_error err = {.text = ""};
    struct link_endpoints endpoints;
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (int listening = 0; listening < 2; listening++) {
        err.text[0] = '\0';
        int rc = link_url_parse(text, listening, &endpoints, &err);
        if ((rc == 0) != (err.text[0] == '\0'))
            abort();
        if (rc == 0) {
            check_ends(&endpoints);
            check_key(&endpoints.curve);
        }
    }
    enum mechanism speaks = link_mechanism_read((const unsigned char *)text, size);
    if (size < 64 && speaks != LINK_SPEAKS_OTHER)
        abort();
    free(text);
    return 0;
}
