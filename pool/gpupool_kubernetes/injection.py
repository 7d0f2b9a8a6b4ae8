"""What a pod that asks for GPUs gets: annotations, a gate, volumes, a container and variables.

It is done on a copy, and told as a JSON Patch of the parts that became different. To do it a second
time changes nothing.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool_common import paths
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.pods import CONTAINERS, Pod, PodRequest
from gpupool_kubernetes.resources import FAMILIES

#: What of a pod the webhook changes.
PARTS = (
    ("metadata", "annotations"),
    ("metadata", "labels"),
    ("metadata", "finalizers"),
    ("spec", "schedulingGates"),
    ("spec", "volumes"),
    ("spec", "initContainers"),
    ("spec", "containers"),
)

#: Where CUDA images keep the driver's libraries: a variable of ours replaces the image's own.
_USUAL_PATH = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
_SEARCH, _PRELOADED = "LD_LIBRARY_PATH", "LD_PRELOAD"
_PRELOAD = "/etc/ld.so.preload"
#: Of a ServiceAccount token; the kubelet renews it before.
_CREDENTIAL_SECONDS = 3600


@dataclass(frozen=True)
class Injector:
    """What is put into pods, by the settings."""

    settings: Settings
    #: Of who signs the controller's certificate, in PEM; empty: the system's.
    credential_ca: str = ""

    def patch(self, pod: Pod, request: PodRequest) -> tuple[dict[str, Any], ...]:
        """The operations that make of a pod one that waits for its lease."""
        made = copy.deepcopy(pod)
        meta, spec = made.setdefault("metadata", {}), made.setdefault("spec", {})
        self._strip(made)
        meta["annotations"] = {**pods.notes(pod), names.REQUEST: request.text()}
        meta["labels"] = {**pods.labels(pod), names.MANAGED: "true"}
        meta["finalizers"] = _with(pods.finalizers(pod), names.FINALIZER)
        spec["schedulingGates"] = _with_named(spec.get("schedulingGates"), {"name": names.GATE})
        for volume in self._volumes():
            spec["volumes"] = _with_named(spec.get("volumes"), volume)
        for part in CONTAINERS:
            for container in spec.get(part) or []:
                if container.get("name") == request.container:
                    self._equip(container)
        others = [each for each in spec.get("initContainers") or [] if not _is_ours(each)]
        spec["initContainers"] = [self._container(), *others]
        return tuple(_operations(pod, made))

    def _strip(self, pod: Pod) -> None:
        """Take off what no node has, zeros as well."""
        ours = {name for each in self.settings.resource_names for name in FAMILIES[each][0]}
        for container in pods.containers(pod):
            for part in ("limits", "requests"):
                amounts = (container.get("resources") or {}).get(part) or {}
                for name in ours & set(amounts):
                    del amounts[name]

    # Volumes and the container that fills them ------------------------------------------------

    def _volumes(self) -> list[dict[str, Any]]:
        libraries: dict[str, Any] = {"emptyDir": {}}
        if self.settings.image_volumes:
            libraries = {"image": {"reference": self.settings.image, "pullPolicy": "IfNotPresent"}}
        token = {
            "audience": names.AUDIENCE,
            "expirationSeconds": _CREDENTIAL_SECONDS,
            "path": "token",
        }
        return [
            {"name": names.LIBRARIES_VOLUME, **libraries},
            {"name": names.LEASE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {
                "name": names.CREDENTIAL_VOLUME,
                "projected": {"sources": [{"serviceAccountToken": token}]},
            },
        ]

    def _container(self) -> dict[str, Any]:
        """It runs beside the others: it brings the libraries, and keeps the lease's token fresh."""
        command = ["gpupool-kubernetes", "pod", "--url", self.settings.credential_url]
        command += ["--library-path", self._library_path]
        mounts = [
            {"name": names.LEASE_VOLUME, "mountPath": names.LEASE_PATH},
            {
                "name": names.CREDENTIAL_VOLUME,
                "mountPath": names.CREDENTIAL_PATH,
                "readOnly": True,
            },
        ]
        if not self.settings.image_volumes:
            command += ["--libraries", names.LIBRARIES_PATH]
            mounts.append({"name": names.LIBRARIES_VOLUME, "mountPath": names.LIBRARIES_PATH})
        variables = [{"name": names.CREDENTIAL_CA, "value": self.credential_ca}]
        return {
            "name": names.CONTAINER,
            "image": self.settings.image,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": variables if self.credential_ca else [],
            "restartPolicy": "Always",
            "startupProbe": {
                "exec": {"command": ["test", "-s", f"{names.LEASE_PATH}/token"]},
                "periodSeconds": 1,
                "failureThreshold": 300,
            },
            "resources": {
                "requests": {"cpu": "10m", "memory": "64Mi"},
                "limits": {"memory": "256Mi"},
            },
            # As the Pod Security Standard "restricted" wants it.
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": mounts,
        }

    # The container that asks ------------------------------------------------------------------

    @property
    def _library_path(self) -> str:
        if self.settings.image_volumes:
            return names.LIBRARIES_PATH + self.settings.image_libraries
        return f"{names.LIBRARIES_PATH}/lib"

    def _equip(self, container: dict[str, Any]) -> None:
        mounts = [
            {
                "name": names.LIBRARIES_VOLUME,
                "mountPath": names.LIBRARIES_PATH,
                "readOnly": True,
            },
            {"name": names.LEASE_VOLUME, "mountPath": names.LEASE_PATH, "readOnly": True},
        ]
        if self.settings.libraries == "preload":
            mounts.append(
                {
                    "name": names.LEASE_VOLUME,
                    "mountPath": _PRELOAD,
                    "subPath": "ld.so.preload",
                    "readOnly": True,
                }
            )
        for mount in mounts:
            container["volumeMounts"] = _with_named(
                container.get("volumeMounts"), mount, "mountPath"
            )
        servers = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.SERVERS}']"}}
        variables: list[dict[str, Any]] = [
            {"name": "GPUPOOL_SERVER", "valueFrom": servers},
            {"name": "GPUPOOL_TOKEN_FILE", "value": f"{names.LEASE_PATH}/token"},
        ]
        if self.settings.libraries == "path":
            own = [f"{self._library_path}/{Path(name).name}" for name in paths.PRELOADED]
            variables += [
                {
                    "name": _SEARCH,
                    "value": _joined(container, _SEARCH, [self._library_path], _USUAL_PATH),
                },
                # As `gpupool run` sets it: programs find CUPTI and NCCL of their own by RPATH.
                {"name": _PRELOADED, "value": _joined(container, _PRELOADED, own)},
            ]
        for variable in variables:
            container["env"] = _with_named(container.get("env"), variable)


def _joined(container: dict[str, Any], name: str, ours: list[str], usual: str = "") -> str:
    """Ours first, then what the container itself says; a variable of its image cannot be read."""
    said = [each for each in container.get("env") or [] if each.get("name") == name]
    own = str(said[-1].get("value") or "") if said else usual
    return ":".join([*ours, *(part for part in own.split(":") if part and part not in ours)])


def _is_ours(container: dict[str, Any]) -> bool:
    return container.get("name") == names.CONTAINER


def _with(found: list[Any], value: Any) -> list[Any]:
    return found if value in found else [*found, value]


def _with_named(found: Any, value: dict[str, Any], key: str = "name") -> list[dict[str, Any]]:
    """A list in which ``value`` is the only one of its name, where that one was."""
    listed = list(found or [])
    places = [place for place, each in enumerate(listed) if each.get(key) == value[key]]
    if not places:
        return [*listed, value]
    listed[places[0]] = value
    return [each for place, each in enumerate(listed) if place not in places[1:]]


def _operations(before: Pod, after: Pod) -> list[dict[str, Any]]:
    found = []
    for outer, inner in PARTS:
        value = after[outer].get(inner)
        if value is not None and value != (before.get(outer) or {}).get(inner):
            found.append({"op": "add", "path": f"/{outer}/{inner}", "value": value})
    return found
