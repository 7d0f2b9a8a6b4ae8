"""What a client asks for in a hello, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from gpupool_common import protocol, request
from gpupool_common.errors import ProtocolError
from gpupool_common.quantities import LEAST_MEMORY, MOST_MEMORY
from gpupool_common.sizes import WHOLE_GPU
from gpupool_server.board import POLICIES
from gpupool_server.claims import LimitsRequest
from gpupool_server.config import DEFAULT_TENANT
from gpupool_server.device_indexes import MAX_DEVICES, check_indexes, parse_indexes
from gpupool_server.inventory import Inventory
from gpupool_server.sharing import name_allowed
from gpupool_server.tenants import LeasePart, Tenant

_FRACTION = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")
_INDICES = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,63}")


@dataclass(frozen=True)
class SessionRequest:
    """What a client that may have a session asks for."""

    pid: int
    program: str
    host: str
    devices: tuple[int, ...] | None = None
    gpus: int | None = None
    tenant: Tenant = Tenant(DEFAULT_TENANT)
    group: str | None = None
    limits: LimitsRequest = LimitsRequest()
    #: Whether tcp alone does not do for it.
    needs_zmq: bool = True
    #: Whether it asks for UCX.
    wants_ucx: bool = False
    #: Whether its devices are those alone that the program is to see.
    is_narrow: bool = False


def read_number(question: protocol.Message, key: str, low: int, high: int) -> int:
    """A field that must be there and hold a whole number."""
    text = question.require(key)
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise ProtocolError(f"{question.word}: '{key}' must be a whole number")
    if not low <= int(text) <= high:
        raise ProtocolError(f"{question.word}: '{key}' must be {low}..{high}")
    return int(text)


def _maybe(question: protocol.Message, key: str, low: int, high: int) -> int | None:
    return read_number(question, key, low, high) if key in question.fields else None


def read_session_request(
    question: protocol.Message, tenant: Tenant, inventory: Inventory
) -> SessionRequest:
    """The request of a hello; ProtocolError says which field is wrong."""
    if tenant.lease is not None:
        return _read_lease_request(question, tenant, tenant.lease)
    group = question.fields.get("group")
    if group is not None and not name_allowed(group):
        raise ProtocolError("hello: 'group' must be 1 to 32 of A-Z a-z 0-9 . _ -")
    return SessionRequest(
        pid=read_number(question, "pid", 1, 2**22),
        program=question.require("program")[:256],
        host=question.require("host")[:256],
        devices=_read_devices(question, inventory),
        gpus=_maybe(question, "gpus", 1, 1024),
        tenant=tenant,
        group=group,
        limits=read_limits(question),
        needs_zmq=_needs_zmq(question),
        wants_ucx=_wants_ucx(question),
    )


def _needs_zmq(question: protocol.Message) -> bool:
    """An earlier release says nothing. Workers of a client with several servers may have to speak
    to one of an earlier release."""
    if "ways" not in question.fields:
        return True
    ways = question.fields["ways"].split()
    servers = _maybe(question, "servers", 1, 1024) or 1
    return servers > 1 or ("zmq" in ways and "tcp" not in ways)


def _wants_ucx(question: protocol.Message) -> bool:
    return "ucx" in question.fields.get("ways", "").split()


#: What a client that comes with a lease has asked the pool for, and not the server.
_OF_LEASES = (
    "gpus",
    "devices",
    "group",
    "memory",
    "memory-fraction",
    "share",
    "ceiling",
    "weight",
    "priority",
    "policy",
)


def _source(question: protocol.Message, key: str) -> str:
    """What the program's user knows a field by: the variable that asks for it."""
    variable = request.source(key, request.variables(question.fields))
    return variable if variable != key else f"'{key}'"


def _read_lease_request(
    question: protocol.Message, tenant: Tenant, lease: LeasePart
) -> SessionRequest:
    asked = [key for key in _OF_LEASES if key in question.fields]
    if asked:
        raise ProtocolError(
            f"{_source(question, asked[0])} cannot be used with a lease, which says already what"
            " the program has; unset it"
        )
    visible = _visible(question, lease.devices)
    return SessionRequest(
        pid=read_number(question, "pid", 1, 2**22),
        program=question.require("program")[:256],
        host=question.require("host")[:256],
        devices=visible or lease.devices,
        is_narrow=bool(visible),
        tenant=tenant,
        group=lease.lease,
        needs_zmq=_needs_zmq(question),
        wants_ucx=_wants_ucx(question),
    )


def _visible(question: protocol.Message, devices: tuple[int, ...]) -> tuple[int, ...]:
    """What a program sees of a lease's devices, by CUDA_VISIBLE_DEVICES; (): its library knows.

    A session that has no more goes on when the lease gives the others back.
    """
    text = question.fields.get("visible", "")
    if _INDICES.fullmatch(text) is None:
        return ()
    numbers = [int(number) for number in text.split(",")]
    within = list(takewhile(lambda number: number < len(devices), numbers))
    return tuple(devices[n] for n in within) if len(set(within)) == len(within) else ()


def read_limits(question: protocol.Message) -> LimitsRequest:
    """The limits that a question asks for."""
    if question.fields.get("policy", "share") not in POLICIES:
        raise ProtocolError(f"{question.word}: 'policy' must be one of {', '.join(POLICIES)}")
    priority = _maybe(question, "priority", 0, 1)
    request = LimitsRequest(
        memory=_maybe(question, "memory", LEAST_MEMORY, MOST_MEMORY),
        share=_maybe(question, "share", 1, WHOLE_GPU),
        ceiling=_maybe(question, "ceiling", 1, WHOLE_GPU),
        weight=_maybe(question, "weight", 0, 25),
        high_priority=None if priority is None else bool(priority),
        fractions=_read_fractions(question),
    )
    if request.memory is not None and request.fractions:
        raise ProtocolError(f"{question.word}: 'memory' and 'memory-fraction' exclude each other")
    if request.ceiling is not None and request.ceiling < (request.share or 1):
        raise ProtocolError(f"{question.word}: 'ceiling' must not be less than 'share'")
    return request


def _read_fractions(question: protocol.Message) -> tuple[tuple[int, int], ...]:
    text = question.fields.get("memory-fraction")
    if text is None:
        return ()
    matches = [_FRACTION.fullmatch(part) for part in text.split(",")]
    parts = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    if len(parts) != len(matches) or len(parts) > MAX_DEVICES:
        raise ProtocolError(f"{question.word}: 'memory-fraction' must be parts such as 6/15,3/15")
    if not all(1 <= part <= whole for part, whole in parts):
        raise ProtocolError(f"{question.word}: 'memory-fraction' must be above 0, and at most 1")
    return tuple(parts)


def _read_devices(question: protocol.Message, inventory: Inventory) -> tuple[int, ...] | None:
    text = question.fields.get("devices")
    if text is None:
        return None
    by_uuid = {device.uuid.lower(): device.index for device in inventory.devices}
    by_uuid |= {uuid.removeprefix("gpu-"): index for uuid, index in by_uuid.items()}
    parts = [part.strip().lower() for part in text.split(",")]
    unknown = [part for part in text.split(",") if "-" in part and part.lower() not in by_uuid]
    try:
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a GPU of this server; see gpupool info --json")
        if not any(part in by_uuid for part in parts):
            return parse_indexes(text)
        return check_indexes(
            tuple(by_uuid[p] if p in by_uuid else parse_indexes(p)[0] for p in parts)
        )
    except ValueError as error:
        raise ProtocolError(f"{_source(question, 'devices')}: {error}") from None
