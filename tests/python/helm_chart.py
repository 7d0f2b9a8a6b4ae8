"""The chart, rendered as `helm template` would."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from go_template import Renderer, TemplateError, show

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "kubernetes/chart"
NAMESPACE = "gpupool-system"

Object = dict[str, Any]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as Kubernetes reads it: a key that comes twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(set(keys)) != len(keys):
            raise TemplateError(f"a key comes twice: {keys}")
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def load_all(text: str) -> list[Object]:
    return [found for found in yaml.load_all(text, _Loader) if found is not None]


def merged(over: Object, under: Object) -> Object:
    """Both, key by key; what the first has counts."""
    found = copy.deepcopy(under)
    for key, value in over.items():
        below = found.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        found[key] = merged(value, below) if both else value  # type: ignore[arg-type]
    return found


def _dict(*pairs: Any) -> Object:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _to_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=True, default_flow_style=False)
    return text.removesuffix("\n")


def _indent(count: int, text: str) -> str:
    return "\n".join(" " * count + line for line in text.split("\n"))


def _is_kind(kind: str, value: Any) -> bool:
    if kind != "map":
        raise TemplateError(f"kindIs {kind}")
    return isinstance(value, dict)


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _printf(form: str, *values: Any) -> str:
    return form.replace("%v", "%s") % tuple(show(value) for value in values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: int(a) + int(b),
    "and": _and,
    "base": lambda path: path.rpartition("/")[2],
    "append": lambda items, item: [*items, item],
    "default": lambda fallback, value=None: value or fallback,
    "dict": _dict,
    "eq": lambda a, b: a == b,
    "index": lambda container, key: container[key],
    "join": lambda mark, items: mark.join(items),
    "kindIs": _is_kind,
    "list": lambda *items: list(items),
    "merge": merged,
    "ne": lambda a, b: a != b,
    "nindent": lambda count, text: "\n" + _indent(count, text),
    "not": lambda value: not value,
    "or": _or,
    "printf": _printf,
    "quote": lambda value: json.dumps(show(value)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "trimSuffix": lambda end, text: text.removesuffix(end),
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")),
    "toYaml": _to_yaml,
}


class _Files:
    """`.Files.Get` and `.Files.Glob` as methods that a template names as fields."""

    def __init__(self, chart: Path) -> None:
        self._chart = chart

    def get(self, name: str) -> Any:
        return {"Get": self.read, "Glob": self.glob}[name]

    def read(self, path: str) -> str:
        return (self._chart / path).read_text(encoding="utf-8")

    def glob(self, pattern: str) -> dict[str, bytes]:
        found = sorted(self._chart.glob(pattern))
        return {str(path.relative_to(self._chart)): path.read_bytes() for path in found}


def values_of(chart: Path = CHART, **changes: Any) -> Object:
    """The chart's values, with changes by their paths: server__driver="soft"."""
    over: Object = {}
    for path, value in changes.items():
        *ahead, last = path.split("__")
        at = over
        for key in ahead:
            at = at.setdefault(key, {})
        at[last] = value
    return merged(over, load_all((chart / "values.yaml").read_text(encoding="utf-8"))[0])


def render(values: Object, namespace: str = NAMESPACE, chart: Path = CHART) -> list[Object]:
    """All objects, by file and in its order."""
    files = _Files(chart)
    renderer = Renderer(FUNCTIONS)
    about = load_all((chart / "Chart.yaml").read_text(encoding="utf-8"))[0]
    dot = {
        "Values": values,
        "Release": {"Name": "gpupool", "Namespace": namespace, "Service": "Helm"},
        "Chart": {"Name": about["name"], "AppVersion": about["appVersion"]},
        "Files": files,
    }
    paths = sorted((chart / "templates").glob("*"))
    learned = {path: renderer.learn(path.read_text(encoding="utf-8")) for path in paths}
    found: list[Object] = []
    for path in paths:
        if path.suffix == ".yaml":
            found += load_all(renderer.run(learned[path], dot))
    return found


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(found) == len(objects), "two objects of one kind have one name"
    return found
