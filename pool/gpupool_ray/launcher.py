"""What a runtime environment asks of a pool, as a `gpupool run` that starts its workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gpupool.pool_request import PoolChoices, lease_body, pool_fields
from gpupool_common.errors import ConfigError
from gpupool_common.request_variables import GPUS, MEMORY, SHARE

#: Ray gives a worker up that has not come within 60 s (worker_register_timeout_seconds), and
#: starts another: who waits for GPUs asks again before that.
WAIT = "45"

_PARTS = ("gpus", "memory", "share")
_TEXTS = ("policy", "model", "capability", "min_driver", "priority", "wait", "name", "sessions")
_FLAGS = ("same_host", "spread")
_LISTS = ("label", "uuid")
_PLACES = ("pool", "token_file", "ca")
FIELDS = (*_PARTS, *_TEXTS, *_FLAGS, *_LISTS, *_PLACES)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ConfigError(f"gpupool: {field}: {value!r} is neither text nor a whole number")
    return str(value)


def _texts(field: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"gpupool: {field}: {value!r} is no list")
    return [_text(field, each) for each in value]


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"gpupool: {field}: {value!r} is neither True nor False")
    return value


class Request:
    """The field ``gpupool`` of a runtime environment, checked; ConfigError names what is wrong."""

    def __init__(self, asked: object) -> None:
        if not isinstance(asked, Mapping):
            raise ConfigError(f"gpupool: {asked!r} is no dict, e.g. {{'gpus': 1}}")
        for field in asked:
            if field not in FIELDS:
                raise ConfigError(f"gpupool: {field!r} is not one of {', '.join(FIELDS)}")
        given = {field: value for field, value in asked.items() if value is not None}
        self._texts = {
            field: _text(field, given[field])
            for field in (*_PARTS, *_TEXTS, *_PLACES)
            if field in given
        }
        self._texts.setdefault("wait", WAIT)
        self._texts.setdefault("name", "ray")
        self._flags = [field for field in _FLAGS if field in given and _flag(field, given[field])]
        self._lists = {field: _texts(field, given[field]) for field in _LISTS if field in given}
        self.body = self._body()

    def place(self, field: str) -> str | None:
        """Where the pool is, as far as it does not come from the node's environment."""
        return self._texts.get(field)

    def command(self) -> list[str]:
        """What a worker's command has in front of it."""
        found = [sys.executable, "-m", "gpupool", "run"]
        for field, text in self._texts.items():
            found.append(f"--{field.replace('_', '-')}={text}")
        found += [f"--{field.replace('_', '-')}" for field in self._flags]
        for field, texts in self._lists.items():
            found += [f"--{field}={text}" for text in texts]
        return [*found, "--"]

    def _body(self) -> dict[str, Any]:
        """The lease's body, as `gpupool run` will make it: so mistakes are found beforehand."""
        parts = dict(zip((GPUS, MEMORY, SHARE), map(self._texts.get, _PARTS), strict=True))
        choices: dict[str, Any] = {
            field: self._texts[field] for field in _TEXTS if field in self._texts
        }
        _, asked = pool_fields({}, parts)
        flags: dict[str, Any] = {field: True for field in self._flags}
        return lease_body(
            asked,
            PoolChoices(
                **choices,
                **flags,
                labels=tuple(self._lists.get("label", ())),
                uuids=tuple(self._lists.get("uuid", ())),
            ),
        )
