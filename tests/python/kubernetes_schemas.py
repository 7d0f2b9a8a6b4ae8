"""The schemas of Kubernetes' objects, release by release, and of those of others that we make."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry, Resource

OLDEST = (1, 30)

#: The Prometheus operator's, as much of them as we use.
_SELECTOR = {"type": "object", "properties": {"matchLabels": {"type": "object"}}}
_KEY = {
    "type": "object",
    "required": ["name", "key"],
    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    "additionalProperties": False,
}
_ENDPOINT = {
    "type": "object",
    "required": ["port", "path", "scheme"],
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string"},
        "scheme": {"enum": ["http", "https"]},
        "interval": {"type": "string"},
        "authorization": {
            "type": "object",
            "properties": {"type": {"const": "Bearer"}, "credentials": _KEY},
            "additionalProperties": False,
        },
        "tlsConfig": {
            "type": "object",
            "properties": {
                "ca": {"properties": {"secret": _KEY}, "additionalProperties": False},
                "serverName": {"type": "string"},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
_RULE = {
    "type": "object",
    "required": ["expr"],
    "properties": {
        "alert": {"type": "string"},
        "record": {"type": "string"},
        "expr": {"type": "string"},
        "for": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}
_GROUP = {
    "type": "object",
    "required": ["name", "rules"],
    "properties": {
        "name": {"type": "string"},
        "interval": {"type": "string"},
        "rules": {"type": "array", "minItems": 1, "items": _RULE},
    },
    "additionalProperties": False,
}
_SPECS: dict[str, dict[str, Any]] = {
    "ServiceMonitor": {
        "type": "object",
        "required": ["selector", "endpoints"],
        "properties": {
            "selector": _SELECTOR,
            "endpoints": {"type": "array", "minItems": 1, "items": _ENDPOINT},
        },
        "additionalProperties": False,
    },
    "PrometheusRule": {
        "type": "object",
        "required": ["groups"],
        "properties": {"groups": {"type": "array", "minItems": 1, "items": _GROUP}},
        "additionalProperties": False,
    },
}
OTHERS = {
    ("monitoring.coreos.com/v1", kind): {"type": "object", "properties": {"spec": spec}}
    for kind, spec in _SPECS.items()
}


def _folder() -> Traversable:
    return files("kubernetes_validate").joinpath("kubernetes-json-schema")


def releases() -> list[str]:
    """`1.30` to the newest that is known."""
    found = set()
    for each in _folder().iterdir():
        major, minor, _ = each.name.removeprefix("v").partition("-")[0].split(".")
        if (int(major), int(minor)) >= OLDEST:
            found.add((int(major), int(minor)))
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def _read(release: str, name: str) -> Any:
    path = _folder().joinpath(f"v{release}.0-local-strict", name)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@cache
def _definitions(release: str) -> Resource[Any]:
    return Resource.from_contents(_read(release, "_definitions.json"))


@cache
def validator(release: str, version: str, kind: str) -> Draft202012Validator | None:
    """For objects of an apiVersion and a kind; None: that release has none such."""
    if (own := OTHERS.get((version, kind))) is not None:
        return Draft202012Validator(own)
    group, _, plain = version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], plain)))
    schema = _read(release, f"{name}.json")
    if schema is None:
        return None
    registry: Registry[Any] = Resource.from_contents(schema) @ (
        _definitions(release) @ Registry[Any]()
    )
    return Draft202012Validator(schema, registry=registry)


def wrong(release: str, thing: dict[str, Any]) -> list[str]:
    """What a release's schema has against an object."""
    known = validator(release, thing["apiVersion"], thing["kind"])
    if known is None:
        return [f"Kubernetes {release} has no {thing['kind']} of {thing['apiVersion']}"]
    return [f"{error.json_path}: {error.message}" for error in known.iter_errors(thing)]
