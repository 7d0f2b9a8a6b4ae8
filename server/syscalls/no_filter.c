/* For a build without libseccomp. */
#include "filter.h"

const struct gp_filter gp_filters[2][2] = {0};
