/*
 * The conformance suite that every transport passes: a new transport's test is
 * one table and a call of transport_suite_run.
 */
#ifndef GP_TRANSPORT_SUITE_H
#define GP_TRANSPORT_SUITE_H

/* How a stranger, who knows no transport, reaches its socket. */
enum raw_kind {
    RAW_NONE,      /* there is no socket */
    RAW_TCP,       /* tcp://HOST:PORT[?…] */
    RAW_STREAM,    /* SCHEME://PATH, SOCK_STREAM */
    RAW_SEQPACKET, /* SCHEME://PATH, SOCK_SEQPACKET */
};

struct transport_suite {
    const char *name;
    /* Where to listen and where nobody does; %s is a fresh folder. */
    const char *listen_url;
    const char *nobody_url;
    enum raw_kind raw;
    /* NULL: the one whose scheme `listen_url` has. */
    const struct gp_transport *transport;
};

/* What main returns. Plug-ins are looked for in GPUPOOL_PLUGIN_DIR. */
int transport_suite_run(const struct transport_suite *suite);

#endif
