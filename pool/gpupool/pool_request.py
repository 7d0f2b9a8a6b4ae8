"""What is asked of a pool: a request's fields and a pool's own options, as a lease's body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool import request_options
from gpupool.options import read_number
from gpupool_common import request, request_variables
from gpupool_common.errors import ConfigError
from gpupool_common.sizes import WHOLE_GPU

BEYOND_QUOTA = ("refuse", "wait", "borrow")
POLICIES = ("binpack", "spread", "fragmentation")

#: The longest that a pool keeps a request waiting.
MOST_WAIT = 7 * 86400
FOREVER = "forever"

#: How long a lease lasts when its owner has died without a word.
TTL_SECONDS = 60

_CAPABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,2}")
_LABEL = re.compile(r"([A-Za-z0-9._-]{1,64})=([^\x00-\x1f\x7f]{0,256})")
_UNIT = re.compile(r"([0-9]{1,6})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

#: What one GPU can be asked for, and a lease has no place for.
_ELSEWHERE = {
    "devices": "a pool's GPUs have no numbers; --uuid, --model and --label say which",
    "weight": "a lease has a share and no weight",
    "group": "a lease is what its processes share",
}


@dataclass(frozen=True)
class PoolChoices:
    """The options that only a pool has, as they were written."""

    policy: str | None = None
    model: str | None = None
    capability: str | None = None
    min_driver: str | None = None
    same_host: bool = False
    spread: bool = False
    labels: tuple[str, ...] = ()
    priority: str | None = None
    wait: str | None = None
    name: str | None = None
    tenant: str | None = None
    ttl: str | None = None
    sessions: str | None = None
    uuids: tuple[str, ...] = ()
    lease: str | None = None
    warn_signal: str | None = None
    beyond_quota: str | None = None
    time: str | None = None

    def given(self) -> list[str]:
        """The options that are there and that nothing but a pool understands."""
        options = {
            "--policy": self.policy,
            "--model": self.model,
            "--capability": self.capability,
            "--min-driver": self.min_driver,
            "--same-host": self.same_host,
            "--spread": self.spread,
            "--label": self.labels,
            "--wait": self.wait,
            "--name": self.name,
            "--tenant": self.tenant,
            "--sessions": self.sessions,
            "--uuid": self.uuids,
            "--lease": self.lease,
            "--warn-signal": self.warn_signal,
            "--beyond-quota": self.beyond_quota,
            "--time": self.time,
        }
        return [option for option, value in options.items() if value not in (None, False, ())]


def lease_body(asked: Mapping[str, str], choices: PoolChoices) -> dict[str, Any]:
    """The body of a request for a lease; ConfigError names the option that is wrong.

    ``asked`` has the fields of a request (gpupool_common.request), without a priority.
    """
    body: dict[str, Any] = {
        "gpus": int(asked.get("gpus", "1")),
        "memory_bytes": _memory(asked),
        "share_permille": int(asked.get("share", WHOLE_GPU)),
        "hosts": _hosts(choices),
        "labels": read_labels("--label", choices.labels),
        "ttl_seconds": TTL_SECONDS if choices.ttl is None else _ttl(choices.ttl),
        "wait_seconds": read_wait(choices.wait),
    }
    if choices.uuids:
        body["uuids"] = list(choices.uuids)
        if "gpus" not in asked:
            del body["gpus"]  # as many as are named
    if body["share_permille"] != WHOLE_GPU and body["memory_bytes"] is None:
        raise ConfigError("--share: a part of a GPU needs --memory beside it, e.g. --memory 8GiB")
    if "ceiling" in asked:
        body["ceiling_permille"] = int(asked["ceiling"])
    if choices.time is not None:
        body["time_seconds"] = read_duration("--time", choices.time)
    for option, key, text, words in (
        ("--policy", "policy", choices.policy, POLICIES),
        ("--beyond-quota", "beyond_quota", choices.beyond_quota, BEYOND_QUOTA),
    ):
        if text is not None:
            if text not in words:
                raise ConfigError(f"{option}: {text!r} is not one of {', '.join(words)}")
            body[key] = text
    if choices.capability is not None:
        if _CAPABILITY.fullmatch(choices.capability) is None:
            raise ConfigError(f"--capability: {choices.capability!r} is not of the form 8.0")
        body["capability"] = choices.capability
    if choices.min_driver is not None:
        if _CAPABILITY.fullmatch(choices.min_driver) is None:
            raise ConfigError(f"--min-driver: {choices.min_driver!r} is not of the form 12.4")
        body["min_driver"] = choices.min_driver
    if choices.priority is not None:
        body["priority"] = read_number("--priority", choices.priority, 0, 100)
    if choices.sessions is not None:
        from gpupool_common.quantities import MOST_SESSIONS  # with pydantic, for pools alone

        body["sessions"] = read_number("--sessions", choices.sessions, 1, MOST_SESSIONS)
    for key, text in (
        ("model", choices.model),
        ("tenant", choices.tenant),
        ("label", choices.name),
    ):
        if text is not None:
            body[key] = text
    return body


def _memory(asked: Mapping[str, str]) -> int | None:
    if "memory" in asked:
        return int(asked["memory"])
    if asked.get("memory-fraction", request.WHOLE) != request.WHOLE:
        raise ConfigError("no part of a card's memory is asked of a pool; write --memory 8GiB")
    return None


def _hosts(choices: PoolChoices) -> str:
    if choices.same_host and choices.spread:
        raise ConfigError("--same-host and --spread exclude each other")
    return "same" if choices.same_host else "spread" if choices.spread else "any"


def _ttl(text: str) -> int:
    seconds = read_duration("--ttl", text)
    if not 5 <= seconds <= 86400:
        raise ConfigError(f"--ttl: {text!r} is not 5 seconds .. 1 day")
    return seconds


def read_wait(text: str | None) -> int:
    """Seconds to wait in the queue; as long as a pool lets one if nothing is said."""
    if text is None or text == FOREVER:
        return MOST_WAIT
    try:
        return min(read_duration("--wait", text), MOST_WAIT)
    except ConfigError:
        raise ConfigError(f"--wait: {text!r} is neither {FOREVER} nor seconds, 10m, 2h") from None


def read_duration(option: str, text: str) -> int:
    """Seconds, from e.g. ``90``, ``15m``, ``12h``, ``30d``."""
    match = _UNIT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{option}: {text!r} is not a time; write seconds, or e.g. 15m, 12h, 30d")
    return int(match[1]) * _SECONDS[match[2]]


def read_labels(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` of nodes."""
    found: dict[str, str] = {}
    for text in texts:
        match = _LABEL.fullmatch(text)
        if match is None:
            raise ConfigError(f"{option}: {text!r} is not KEY=VALUE (KEY of A-Z a-z 0-9 . _ -)")
        found[match[1]] = match[2]
    return found


def pool_fields(
    env: Mapping[str, str], options: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """The environment of a program with a lease, and what it was asked for with.

    The lease says what the program has: nothing else in its environment may.
    """
    given = request_options.given_options(options)
    own = [request_options.OPTIONS[name] for name in given if name in request_variables.OWN]
    old = [request_options.OPTIONS[name] for name in given if name in request_variables.VCUDA]
    if own and old:
        raise ConfigError(f"{old[0]} and {own[0]} exclude each other; use --share with --memory")
    asking = {*request_variables.OWN, *request_variables.CGPU, *request_variables.VCUDA}
    # A group in the environment is of servers' own tenants; so are the names of priorities.
    silent = {request_variables.GROUP, request_variables.PRIORITY} | (asking if old else set())
    merged = {key: value for key, value in env.items() if key not in silent} | given
    names = request_options.option_names(given)
    asked = request.fields(merged, names)
    for field, why in _ELSEWHERE.items():
        if field in asked:
            source = request.source(field, merged)
            raise ConfigError(f"{names.get(source, source)} is not for a pool: {why}; leave it out")
    return {k: v for k, v in env.items() if k not in asking | {request_variables.GROUP}}, asked
