"""What of Python reads bytes of others, as functions of bytes.

Each of TARGETS takes them whole, or refuses them in words of ours: any other exception is a
finding. fuzz_decoders.py gives them what coverage leads to, test_decoders.py what SEEDS has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgpack
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError

from console_decoders import CONSOLE_SEEDS, CONSOLE_TARGETS
from gpupool_common import lease_token, node_protocol, protocol, relay_wire
from gpupool_common.errors import GpupoolError, ProtocolError
from gpupool_kubernetes import names, reviews
from gpupool_kubernetes.admission import Admission
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.dra import claims, plugin
from gpupool_kubernetes.dra.messages import MESSAGES
from gpupool_kubernetes.dra.prepared import Folders
from gpupool_kubernetes.injection import Injector
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.namespace_quotas import NamespaceQuotas
from gpupool_manager import schemas, schemas_reservations
from gpupool_server import budgets, jail_status, worker
from gpupool_server.rundir import Meta
from gpupool_server.session import COUNTERS, Session
from kubernetes_world import pod, review
from lease_token_harness import KEY, KEYS, NOW, issued

#: Bodies of requests to a manager. The first byte of an input says which.
BODIES: tuple[type[BaseModel], ...] = tuple(
    sorted(schemas.In.__subclasses__(), key=lambda each: each.__name__)
) + (schemas.LeaseRequestIn, schemas_reservations.ReservationIn)


def _json(data: bytes) -> Any:
    """As our readers of JSON have it; None where they refuse it."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _packed(data: bytes) -> bytes:
    """MessagePack. JSON is made into it: coverage does not lead far into bytes of a C module."""
    said = _json(data) if data[:1] in (b"{", b"[") else None
    try:
        return data if said is None else cast(bytes, msgpack.packb(said))
    except (ValueError, OverflowError, RecursionError):
        return data


_LOOP = asyncio.new_event_loop()


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return _LOOP.run_until_complete(work)


# Servers, workers and the link ------------------------------------------------------------------


def question(data: bytes) -> None:
    """What a stranger asks a front end."""
    try:
        message = protocol.decode(data)
    except ProtocolError as error:
        assert "\n" not in str(error)
    else:
        assert protocol.decode(protocol.encode(message.word, message.fields)) == message


def records(data: bytes) -> None:
    """What comes from a relay process, in two pieces."""
    unpacker = relay_wire.Unpacker()
    cut = data[0] if data else 0
    try:
        for piece in (data[1 : 1 + cut], data[1 + cut :]):
            for _, parts in unpacker.feed(piece):
                assert len(parts) <= relay_wire.MAX_PARTS
    except relay_wire.RecordError:
        pass


def link(data: bytes) -> None:
    """What a node says to the manager, and the manager to a node."""
    for decode in (node_protocol.decode_from_node, node_protocol.decode_from_manager):
        try:
            message: Any = decode(_packed(data))
        except ProtocolError as error:
            assert "\n" not in str(error)
        else:
            assert decode(node_protocol.encode(message)) == message


def token(data: bytes) -> None:
    """A lease token as a client shows it; and one that is signed, whatever it says."""
    shown = data.decode("latin-1")
    for text in (shown, lease_token.sign(_packed(data), KEY)):
        try:
            found = lease_token.check(text, KEYS)
        except ProtocolError as error:
            assert "\n" not in str(error)
        else:
            assert lease_token.check(lease_token.issue(found, KEY), KEYS) == found


def ready(data: bytes) -> None:
    """The first line of a worker, and what the starter of its jail reports."""
    with contextlib.suppress(worker.WorkerError):
        worker.parse_ready(data.decode("latin-1"))
    with contextlib.suppress(worker.WorkerError):
        jail_status.parse(data)


class _Worker(worker.Control):
    """One that says what it likes of itself."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.line = b""

    async def _ask(self, question: bytes) -> bytes:
        return self.line


_CONFINED = jail_status.Confined(layers={"root": "on", "rlimits": "on"})
_WORKER = _Worker()
_SESSION = Session(
    Meta("a" * 12, 2, 1, (0,), 0.0, 1, "here", "program", confined=_CONFINED),
    folder=cast(Any, None),
    process=cast(Any, None),
    control=_WORKER,
    allocation=cast(Any, None),
    log=cast(Any, SimpleNamespace(lines=0, limit=1, dropped=0)),
)


def status(data: bytes) -> None:
    """A worker's account of itself, as metrics, commands and NVML's answers reckon with it."""
    _WORKER.line = data
    found = _run(_SESSION.describe("running"))
    json.dumps(found)
    counts = [found.get(key) or 0 for key in COUNTERS]
    counts += found.get("host_bytes_by_kind", {}).values()
    counts += [each or 0 for budget in found["budgets"].values() for each in budget.values()]
    assert all(budgets.is_count(each) for each in counts)


# The manager ------------------------------------------------------------------------------------


def body(data: bytes) -> None:
    """The body of a request, as its model reads it."""
    model = BODIES[data[0] % len(BODIES)] if data else BODIES[0]
    try:
        found = model.model_validate(_json(data[1:]))
    except ValidationError:
        return
    assert model.model_validate(found.model_dump(exclude_unset=True)) == found


# Kubernetes -------------------------------------------------------------------------------------


class _Manager:
    """One that has room for everything."""

    async def do(self, *asked: Any) -> dict[str, Any]:
        json.dumps(asked)
        return {"decision": "now"}


class _Cluster:
    """One whose quotas have scopes, and whose only pod is the one that is asked about."""

    def __init__(self) -> None:
        self.pod: Any = None

    async def list(self, path: str, **_: str) -> tuple[list[Any], str]:
        if path.endswith("/pods"):
            return [self.pod] if isinstance(self.pod, dict) else [], "1"
        hard = {"requests.gpupool.io/memory": "16Gi", "requests.gpupool.io/gpu": "2"}
        wanted = {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["gold"]}
        scoped = {"scopes": ["CrossNamespacePodAffinity", "NotTerminating"]}
        chosen = {"scopeSelector": {"matchExpressions": [wanted]}}
        return [{"spec": {"hard": hard, **each}} for each in ({}, scoped, chosen)], "1"

    async def find(self, path: str) -> None:
        assert "//" not in path and "/../" not in path
        return None


_KEPT = tempfile.TemporaryDirectory(prefix="gpfuzz-")  # until this process ends
_FOLDER = Path(_KEPT.name)
_CLUSTER = _Cluster()
_SETTINGS = Settings.model_validate(
    {"tenants": {"*": "*"}, "resource_names": ("gpupool", "nvidia", "aliyun", "tencent")}
)
_ADMISSION = Admission(
    _SETTINGS,
    Injector(_SETTINGS),
    cast(ManagerClient, _Manager()),
    NamespaceQuotas(cast(Cluster, _CLUSTER)),
)
_PLUGIN = plugin.Plugin(
    cast(Cluster, _CLUSTER),
    "gpupool-system",
    Folders(_FOLDER / "data", _FOLDER / "cdi", _FOLDER / "lib"),
    _FOLDER / "registry",
)


def admission(data: bytes) -> None:
    """A review, and what the webhook says to it."""
    try:
        asked = reviews.read(data)
    except reviews.ReviewError as error:
        assert "\n" not in str(error)
        return
    _CLUSTER.pod = asked.object
    answer = reviews.answer(asked.uid, _run(_ADMISSION.judge(asked)))
    assert json.loads(json.dumps(answer))["response"]["uid"] == asked.uid


def kubelet(data: bytes) -> None:
    """What the kubelet asks the plug-in, and whoever else can open its socket."""
    try:
        asked = MESSAGES["NodePrepareResourcesRequest"].FromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        return
    for call in (_PLUGIN._prepare_all, _PLUGIN._unprepare_all):
        _run(call(asked)).SerializeToString()
    assert not any(_FOLDER.iterdir())


def claim(data: bytes) -> None:
    """A ResourceClaim of somebody's, and the Secret that goes with it."""
    said = _json(data)
    if not isinstance(said, dict):
        return
    for read in (claims.read, plugin._decoded, plugin._reason):
        try:
            read(said)
        except (claims.ClaimError, GpupoolError) as error:
            assert "\n" not in str(error)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        *(question, records, link, token, ready, status, body, admission, kubelet, claim),
        *CONSOLE_TARGETS,
    )
}


# What to begin with -----------------------------------------------------------------------------


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


def _joined() -> dict[str, Any]:
    gpu = {"uuid": "GPU-1", "index": 0, "model": "H200", "compute_capability": "9.0"}
    report = {
        "address": "tcp://h:1",
        "server_version": "1",
        "driver": "13.0",
        "labels": {},
        "gpus": [gpu | {"memory_bytes": 1 << 30}],
    }
    about = {"do": "join", "protocol": 2, "number": 1, "node": "n1", "token": "gpn_x"}
    return about | {"report": report}


def _claimed() -> dict[str, Any]:
    result = {"driver": names.DRA_DRIVER, "pool": claims.POOL, "device": "gpu-1", "request": "one"}
    about = {"uid": "0" * 36, "namespace": "red", "name": "train"}
    return {"metadata": about, "status": {"allocation": {"devices": {"results": [result]}}}}


def _prepared() -> bytes:
    asked = MESSAGES["NodePrepareResourcesRequest"]()
    asked.claims.add(namespace="red", uid="0" * 36, name="train")
    return cast(bytes, asked.SerializeToString())


_ACCOUNT = {
    "memory_bytes": 1 << 30,
    "calls": 7,
    "connected": True,
    "host": {"waits": 4096},
    "budgets": {"disk": {"used": 1, "refused": 0}, "host_memory": {"used": 4096, "refused": 2}},
}
_HALF = {"gpupool.io/gpu": "1", "gpupool.io/memory": "2Gi", "gpupool.io/compute": "50"}
_PAYLOAD = [2, "lease-1", "red", NOW, NOW + 600, 0, "r-1", [["here", [[0, "GPU-1", 1 << 26, 500]]]]]
_READY = {"shm": "shm:///run/x", "zmq": "tcp://127.0.0.1:1", "tcp": "tls://127.0.0.1:2"}

#: Inputs that are well formed, for each target, and what was found; "[[[" is what no reader of JSON
#: goes to the end of.
SEEDS: dict[str, list[bytes]] = {
    "question": [protocol.encode("hello", {"token": "t", "wire": "3"})],
    "records": [b"\5" + relay_wire.pack(relay_wire.Kind.MESSAGE, b"a", b"bc") * 2],
    "link": [_text(_joined()), _text({"do": "leave", "protocol": 2, "number": 2}), b"[" * 5000],
    "token": [issued().encode(), _text(_PAYLOAD), _text([3, *_PAYLOAD[1:], 4]), _text(["\n"])],
    "ready": [b"ready " + _text(_READY), b"ready " + b"[" * 5000],
    "status": [
        _text(_ACCOUNT),
        _text(_ACCOUNT | {"memory_bytes": "a text", "calls": -1, "host": {"waits": True}}),
        _text({"memory_bytes": 10**400, "budgets": {"disk": {"used": 1e9, "refused": 0}}}),
        b"[" * 5000,
    ],
    "body": [
        *(bytes([number]) + b"{}" for number in range(len(BODIES))),
        bytes([len(BODIES) - 2]) + _text({"tenant": "red", "gpus": 1, "memory_bytes": 1 << 30}),
        bytes([len(BODIES) - 1]) + _text({"start": "2027-01-15T08:00:00Z", "seconds": 60}),
    ],
    "admission": [
        _text(review(object=pod(**_HALF))),
        _text(review(object=pod(**_HALF), old=pod(**_HALF), operation="UPDATE")),
        b'{"a":' * 5000,
    ],
    **CONSOLE_SEEDS,
    "kubelet": [_prepared()],
    "claim": [_text(_claimed()), _text({"data": {key: "YQ==" for key in ("claim", "token")}})],
}


def words() -> list[str]:
    """What stands in inputs that are well formed: names of fields, and values of theirs."""
    found: set[str] = set()

    def look(said: Any) -> None:
        if isinstance(said, dict):
            found.update(said)
            said = list(said.values())
        if isinstance(said, list):
            for each in said:
                look(each)
        elif isinstance(said, str) and 1 < len(said) < 60:
            found.add(said)

    for seeds in SEEDS.values():
        for seed in seeds:
            look(_json(seed))
    for model in (*BODIES, *node_protocol.Message.__subclasses__()):
        found.update(model.model_fields)
    return sorted(found)
