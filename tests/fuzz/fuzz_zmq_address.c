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
    if (strncmp(e->up, "tcp://", 6) == 0 && strchr(e->up, '?'))
        abort();
}

/* What a listener shows of its key and word is read back as it was. */
static void check_query(const struct link_endpoints *e)
{
    char query[LINK_QUERY_MAX], url[160], plain[2 * LINK_ENDPOINT_MAX];
    struct link_curve curve;
    struct link_word word;
    link_query_show(&e->curve, &e->word, query);
    if ((e->curve.role == LINK_CLEAR && !e->word.given) != (query[0] == '\0'))
        abort();
    snprintf(url, sizeof url, "tcp://h:1%s", query);
    if (link_query_parse(url, false, plain, &curve, &word, NULL) != 0 ||
        memcmp(curve.server, e->curve.server, sizeof curve.server) != 0 ||
        memcmp(&word, &e->word, sizeof word) != 0 || strcmp(plain, "tcp://h:1") != 0)
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
            check_query(&endpoints);
        }
    }
    enum mechanism speaks = link_mechanism_read((const unsigned char *)text, size);
    if (size < 64 && speaks != LINK_SPEAKS_OTHER)
        abort();
    free(text);
    return 0;
}
