"""The manifests for kustomize are the chart's objects; GPUPOOL_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from helm_chart import CHART, Object, by_name, load_all, render, values_of

#: Read here: tests have an environment without variables of ours.
UPDATE = "GPUPOOL_UPDATE_GOLDEN" in os.environ

KUSTOMIZE = CHART.parent / "kustomize"
MANAGED_BY = "app.kubernetes.io/managed-by"
HEAD = "# The chart's own, with its defaults{}: tests/python/test_kustomize.py holds it to that.\n"

#: What an overlay changes of the chart's values.
OVERLAYS: dict[str, dict[str, Any]] = {
    "soft": {"server__driver": "soft"},
    "claim": {"server__claim__enabled": True},
    "postgresql": {"postgresql__enabled": True},
    "dra": {"dra__enabled": True},
}

Name = tuple[str, str, str]
Objects = dict[Name, Object]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    pass


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dumped(objects: Iterable[Any]) -> str:
    text: str = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=True, width=1000)
    return text


def name_of(thing: Object) -> Name:
    meta = thing["metadata"]
    return thing["kind"], meta.get("namespace", ""), meta["name"]


def plain(objects: Iterable[Object]) -> Objects:
    """By name, without what says that Helm looks after them."""
    found = {}
    for each in copy.deepcopy(list(objects)):
        each["metadata"].get("labels", {}).pop(MANAGED_BY, None)
        found[name_of(each)] = each
    return found


@cache
def chart(overlay: str = "") -> Objects:
    """All that the chart installs, and what Helm makes of itself: the namespace and the CRDs."""
    crds = [
        each for path in sorted(CHART.glob("crds/*.yaml")) for each in load_all(path.read_text())
    ]
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "gpupool-system", "labels": {"app.kubernetes.io/name": "gpupool"}},
    }
    return plain([namespace, *crds, *render(values_of(**OVERLAYS.get(overlay, {})))])


def file_of(thing: Object) -> str:
    if thing["kind"] == "CustomResourceDefinition":
        return "crds.yaml"
    if thing["kind"] == "Namespace":
        return "namespace.yaml"
    return f"{thing['metadata']['labels']['app.kubernetes.io/component']}.yaml"


def kustomization(resources: list[str], patches: Iterable[Object] = ()) -> str:
    found: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }
    # One by one: of a file with several that delete, kustomize 5.5 makes a panic.
    if written := [{"patch": dumped([patch])} for patch in patches]:
        found["patches"] = written
    return dumped([found])


def base_files() -> dict[str, str]:
    files: dict[str, list[Object]] = {}
    for each in chart().values():
        files.setdefault(file_of(each), []).append(each)
    found = {name: HEAD.format("") + dumped(objects) for name, objects in files.items()}
    return {**found, "kustomization.yaml": kustomization(sorted(files))}


def patch_of(before: Object, now: Object | None) -> Object:
    """What of an object is another one; None: it is not there."""
    meta = {
        key: before["metadata"][key] for key in ("name", "namespace") if key in before["metadata"]
    }
    head = {"apiVersion": before["apiVersion"], "kind": before["kind"], "metadata": meta}
    if now is None:
        return {**head, "$patch": "delete"}
    parts = {key: now[key] for key in now if now[key] != before.get(key) and key != "metadata"}
    if before["metadata"] != now["metadata"]:
        parts["metadata"] = now["metadata"]
    replaced = {
        key: {**value, "$patch": "replace"} if key == "spec" else value
        for key, value in parts.items()
    }
    return {**head, **replaced}


def overlay_files(overlay: str) -> dict[str, str]:
    base, wanted = chart(), chart(overlay)
    new = [each for name, each in wanted.items() if name not in base]
    patches = [
        patch_of(base[name], wanted.get(name)) for name in base if base[name] != wanted.get(name)
    ]
    resources = ["../../base", *(["objects.yaml"] if new else [])]
    found = {"kustomization.yaml": kustomization(resources, patches)}
    if new:
        found["objects.yaml"] = HEAD.format(f" and {json.dumps(OVERLAYS[overlay])}") + dumped(new)
    return found


FOLDERS = {"base": "", **{f"overlays/{name}": name for name in OVERLAYS}}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_files_are_the_charts_objects(folder: str) -> None:
    overlay, place = FOLDERS[folder], KUSTOMIZE / folder
    expected = overlay_files(overlay) if overlay else base_files()
    if UPDATE:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, text in expected.items():
            (place / name).write_text(text, encoding="utf-8")
    found = {path.name: path.read_text(encoding="utf-8") for path in place.iterdir()}
    assert found == expected, "run it with GPUPOOL_UPDATE_GOLDEN=1 and look at what changed"


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_makes_the_same_of_them(folder: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUSTOMIZE / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made, wanted = plain(load_all(done.stdout)), chart(FOLDERS[folder])
    assert set(made) == set(wanted)
    assert [name for name in wanted if made[name] != wanted[name]] == []


def test_a_file_that_differs_is_found(tmp_path: Path) -> None:
    base = chart()
    one = next(each for each in base.values() if each["kind"] == "ConfigMap")
    other = {**one, "data": {"x": "y"}}
    assert patch_of(one, other)["data"] == {"x": "y"}
    assert patch_of(one, None)["$patch"] == "delete"
    assert by_name([one]) and file_of(one) in base_files()
