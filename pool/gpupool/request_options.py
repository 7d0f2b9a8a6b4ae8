"""Options of ``gpupool run`` that ask for parts of GPUs, as the variables that they set."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from gpupool_common.errors import ConfigError
from gpupool_common.request import fields, has_limits
from gpupool_common.request_variables import (
    CEILING,
    CGPU,
    GPUS,
    GROUP,
    MEMORY,
    OWN,
    PRIORITY,
    SHARE,
    VCUDA,
    VCUDA_CORE,
    VCUDA_MEMORY,
    WEIGHT,
)

#: What `gpupool run` calls the variables that its options set.
OPTIONS = {
    GROUP: "--group",
    GPUS: "--gpus",
    MEMORY: "--memory",
    SHARE: "--share",
    CEILING: "--ceiling",
    WEIGHT: "--weight",
    PRIORITY: "--priority",
    VCUDA_CORE: "--vcuda-core",
    VCUDA_MEMORY: "--vcuda-memory",
}


def given_options(options: Mapping[str, str | None]) -> dict[str, str]:
    """The options that are there; one that is there and empty is a mistake."""
    given = {variable: value for variable, value in options.items() if value is not None}
    for variable, value in given.items():
        if not value.strip():
            raise ConfigError(f"{OPTIONS[variable]}: the value is empty")
    return given


def option_names(given: Mapping[str, str]) -> dict[str, str]:
    """What errors call the variables that options set; vCUDA's two options go together."""
    both = VCUDA if any(variable in VCUDA for variable in given) else ()
    return {variable: OPTIONS[variable] for variable in (*given, *both)}


def with_options(
    env: Mapping[str, str], options: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """The environment of a program that was asked for with options, and its request's fields.

    Options come before variables. A request with limits gets a group of its own, so
    that all processes that the program starts share what was asked for once.
    """
    given = given_options(options)
    own = [OPTIONS[variable] for variable in given if variable in OWN]
    old = [OPTIONS[variable] for variable in given if variable in VCUDA]
    if own and old:
        raise ConfigError(f"{old[0]} and {own[0]} exclude each other; use --share with --memory")
    hidden = {*OWN, *CGPU, *VCUDA} if old else set()
    changed = {key: value for key, value in env.items() if key not in hidden} | given
    asked = fields(changed, option_names(given))
    if has_limits(asked) and "group" not in asked:
        asked["group"] = changed[GROUP] = secrets.token_hex(6)
    return changed, asked
