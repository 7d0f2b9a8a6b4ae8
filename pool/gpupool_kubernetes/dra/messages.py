"""The kubelet's two interfaces for plug-ins of this kind, as their documentation has them.

A message is its fields by name with number and type; these and the services' names are all that
travels. Nothing is generated: protobuf makes its classes of the table when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: Of our own: packages are not sent, and two of one name would not go into one process.
_PACKAGE = "gpupool.kubelet"

_STRING, _BOOL, _MESSAGE = 9, 8, 11
_OPTIONAL, _REPEATED = 1, 3

#: By message, its fields: number, type, and whether it is repeated or a map of texts to it.
_MESSAGES: dict[str, dict[str, tuple[int, str, str]]] = {
    "InfoRequest": {},
    "PluginInfo": {
        "type": (1, "string", ""),
        "name": (2, "string", ""),
        "endpoint": (3, "string", ""),
        "supported_versions": (4, "string", "list"),
    },
    "RegistrationStatus": {"plugin_registered": (1, "bool", ""), "error": (2, "string", "")},
    "RegistrationStatusResponse": {},
    "Claim": {
        "namespace": (1, "string", ""),
        "uid": (2, "string", ""),
        "name": (3, "string", ""),
    },
    "Device": {
        "request_names": (1, "string", "list"),
        "pool_name": (2, "string", ""),
        "device_name": (3, "string", ""),
        "cdi_device_ids": (4, "string", "list"),
    },
    "NodePrepareResourcesRequest": {"claims": (1, "Claim", "list")},
    "NodePrepareResourceResponse": {
        "devices": (1, "Device", "list"),
        "error": (2, "string", ""),
    },
    "NodePrepareResourcesResponse": {"claims": (1, "NodePrepareResourceResponse", "map")},
    "NodeUnprepareResourcesRequest": {"claims": (1, "Claim", "list")},
    "NodeUnprepareResourceResponse": {"error": (1, "string", "")},
    "NodeUnprepareResourcesResponse": {"claims": (1, "NodeUnprepareResourceResponse", "map")},
}


@dataclass(frozen=True)
class Method:
    """One call of a service: what it takes and gives."""

    name: str
    request: str
    response: str


REGISTRATION = "pluginregistration.Registration"
REGISTRATION_METHODS = (
    Method("GetInfo", "InfoRequest", "PluginInfo"),
    Method("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse"),
)

#: What a plug-in says that it speaks, and the service of that name on the wire, which both
#: releases of Kubernetes that differ here have with the same messages.
DRA_SERVICES = {
    f"{version}.DRAPlugin": f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
    for version in ("v1", "v1beta1")
}
DRA_METHODS = (
    Method("NodePrepareResources", "NodePrepareResourcesRequest", "NodePrepareResourcesResponse"),
    Method(
        "NodeUnprepareResources",
        "NodeUnprepareResourcesRequest",
        "NodeUnprepareResourcesResponse",
    ),
)


def _classes() -> dict[str, Callable[..., Any]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="gpupool/kubelet.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, form) in fields.items():
            made = message.field.add(name=field, number=number, label=_OPTIONAL)
            if form:
                made.label = _REPEATED
            _set_type(made, _entry(message, name, field, kind) if form == "map" else kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _entry(message: Any, name: str, field: str, kind: str) -> str:
    """A map is a list of such messages of key and value."""
    made = message.nested_type.add(name=f"{field.title()}Entry")
    made.options.map_entry = True
    for number, (part, of) in enumerate((("key", "string"), ("value", kind)), 1):
        _set_type(made.field.add(name=part, number=number, label=_OPTIONAL), of)
    return f"{name}.{made.name}"


def _set_type(field: Any, kind: str) -> None:
    if kind in ("string", "bool"):
        field.type = _STRING if kind == "string" else _BOOL
    else:
        field.type = _MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


#: The class of each message, by its name.
MESSAGES = _classes()
