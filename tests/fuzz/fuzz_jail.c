/*
 * Descriptions of a jail, as gpupool-jail takes them apart: any text that ends with a line's end.
 * What is found sound names plain paths and open descriptors, gives the worker no variable of
 * another's, and has links of which each can be filtered.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "description.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_path(const char *path)
{
    must(path[0] == '/' && path[1] && strlen(path) < 4096 && path[strlen(path) - 1] != '/');
    must(!strstr(path, "//") && !strstr(path, "/../") && !strstr(path, "/./"));
    const char *last = strrchr(path, '/');
    must(strcmp(last, "/.") != 0 && strcmp(last, "/..") != 0);
}

static void check_open(int fd)
{
    must(fd > STDERR_FILENO && fcntl(fd, F_GETFD) >= 0);
}

static void check_environment(const struct gpj_description *d)
{
    must(d->env_count <= GPJ_ENV_MAX && !d->env[d->env_count]);
    for (unsigned i = 0; i < d->env_count; i++)
        must(strchr(d->env[i], '=') > d->env[i] && strncmp(d->env[i], "LD_PRELOAD=", 11) != 0);
}

static void check_links(const struct gpj_links *links)
{
    static struct gpj_filter f;
    must(links->count <= GPJ_LINKS_MAX);
    for (unsigned i = 0; i < links->count; i++) {
        const struct gpj_link *link = &links->at[i];
        must(memchr(link->name, '\0', sizeof link->name) && !strchr(link->name, '/'));
        must(link->peer_count > 0 && link->peer_count <= GPJ_PEERS_MAX);
        for (int in = 0; in < 2; in++) {
            gpj_peer_filter_make(&f, in, &link->own, link->peers, link->peer_count);
            must(f.count > 0 && f.count <= GPJ_FILTER_MAX);
        }
    }
}

static void check(const struct gpj_description *d)
{
    must(d->root && d->has_uid == d->has_gid && (!d->has_uid || (d->uid && d->gid)));
    check_path(d->root);
    if (d->cgroup)
        check_path(d->cgroup);
    must(d->place_count <= GPJ_PLACES_MAX && d->keep_count <= GPJ_KEEP_MAX);
    for (unsigned i = 0; i < d->place_count; i++) {
        const struct gpj_place *place = &d->places[i];
        check_path(place->path);
        must(place->kind != GPJ_DEVICE || strncmp(place->path, "/dev/", 5) == 0);
        must((place->kind == GPJ_TMPFS) == (place->bytes != 0));
    }
    for (unsigned i = 0; i < d->keep_count; i++)
        check_open(d->keep[i]);
    if (d->holder >= 0)
        check_open(d->holder);
    if (d->learn >= 0)
        check_open(d->learn);
    must(d->limits.count <= GPJ_LIMITS_MAX);
    check_environment(d);
    check_links(&d->links);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct gpj_description d;
    char why[256] = "";
    /* What gpj_description_read lets through. */
    if (size == 0 || size > GPJ_TEXT_MAX || memchr(data, '\0', size))
        return 0;
    char *text = malloc(size + 1); /* of the size itself: one byte beyond is an error */
    memcpy(text, data, size);
    text[size - 1] = '\n';
    text[size] = '\0';
    if (gpj_description_parse(text, &d, why, sizeof why) == 0)
        check(&d);
    else
        must(why[0] && !strchr(why, '\n'));
    free(text);
    return 0;
}
