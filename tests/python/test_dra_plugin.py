"""The kubelet's plug-in, asked through its sockets as a kubelet asks."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from dra_world import FIRST, NAMESPACE, SECOND, DraWorld, claim, dra_world, result
from gpupool_kubernetes.dra import prepared, slices
from gpupool_kubernetes.dra.driver import secret_path
from gpupool_kubernetes.dra.messages import DRA_METHODS, DRA_SERVICES, MESSAGES, REGISTRATION
from gpupool_kubernetes.dra.plugin import Plugin
from gpupool_kubernetes.dra.prepared import Folders

NODE = "gpu.gpupool.io"


class Kubelet:
    """What a kubelet does with a plug-in that it finds."""

    def __init__(self, world: DraWorld, folder: Path) -> None:
        self.world = world
        self.folders = Folders(folder / "data", folder / "cdi", folder / "client")
        self.registry = folder / "registry"
        self.plugin = self.another()

    def another(self) -> Plugin:
        return Plugin(self.world.world.cluster, NAMESPACE, self.folders, self.registry)

    async def raw(self, path: Path, method: str, request: bytes) -> bytes:
        """One call, in bytes."""
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary(method)
            answer: bytes = await call(request, timeout=60)
            return answer

    async def registered(self, method: str, request: Any, answer: str) -> Any:
        path = self.registry / f"{NODE}-reg.sock"
        sent = request.SerializeToString()
        return MESSAGES[answer].FromString(await self.raw(path, f"/{REGISTRATION}/{method}", sent))  # type: ignore[attr-defined]

    async def dra(self, number: int, *asked: Any, version: str = "v1") -> dict[str, Any]:
        """By UID, what the plug-in answers of each claim."""
        method = DRA_METHODS[number]
        service = DRA_SERVICES[f"{version}.DRAPlugin"]
        sent = MESSAGES[method.request](claims=asked).SerializeToString()
        path = self.folders.data / "dra.sock"
        answer = await self.raw(path, f"/{service}/{method.name}", sent)
        return dict(MESSAGES[method.response].FromString(answer).claims)  # type: ignore[attr-defined]

    async def prepare(self, made: Any, **more: Any) -> Any:
        return (await self.dra(0, asked(made), **more))[made["metadata"]["uid"]]

    async def unprepare(self, made: Any) -> Any:
        return (await self.dra(1, asked(made)))[made["metadata"]["uid"]]

    def spec(self, made: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.folders.spec(made["metadata"]["uid"]).read_text())
        return found

    def token(self, made: dict[str, Any]) -> str:
        return (self.folders.claim(made["metadata"]["uid"]) / "token").read_text()


def asked(made: dict[str, Any], **more: str) -> Any:
    meta = made["metadata"]
    fields = {"uid": meta["uid"], "namespace": "red", "name": meta["name"], **more}
    return MESSAGES["Claim"](**fields)


@pytest_asyncio.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with dra_world(tmp_path) as world:
        found = Kubelet(world, tmp_path)
        await found.plugin.start()
        yield found
        await found.plugin.close()


async def test_a_kubelet_finds_it_and_learns_what_it_is(kubelet: Kubelet) -> None:
    info = await kubelet.registered("GetInfo", MESSAGES["InfoRequest"](), "PluginInfo")
    assert (info.type, info.name) == ("DRAPlugin", NODE)
    assert info.endpoint == str(kubelet.folders.data / "dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    for ok in (True, False):
        status = MESSAGES["RegistrationStatus"](plugin_registered=ok, error="" if ok else "why")
        await kubelet.registered("NotifyRegistrationStatus", status, "RegistrationStatusResponse")
    await kubelet.plugin.close()
    assert not (kubelet.registry / f"{NODE}-reg.sock").exists()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_is_prepared_and_taken_back(kubelet: Kubelet, version: str) -> None:
    made = await kubelet.world.given(result(FIRST), result(SECOND, request="more"))
    uid = made["metadata"]["uid"]
    answer = await kubelet.prepare(made, version=version)
    assert answer.error == ""
    assert [list(device.request_names) for device in answer.devices] == [["gpu"], ["more"]]
    assert [device.device_name for device in answer.devices] == [
        slices.device_name(FIRST),
        slices.device_name(SECOND),
    ]
    assert {device.pool_name for device in answer.devices} == {"gpupool"}
    ids = [list(device.cdi_device_ids) for device in answer.devices]
    assert ids == [[f"gpupool.io/claim={uid}-0"], [f"gpupool.io/claim={uid}-1"]]
    spec = kubelet.spec(made)
    assert [f"{spec['kind']}={device['name']}" for device in spec["devices"]] == sum(ids, [])
    env = dict(each.split("=", 1) for each in spec["containerEdits"]["env"])
    assert env["GPUPOOL_SERVER"] == "tcp://n1:7700"
    mounts = {each["containerPath"]: each for each in spec["containerEdits"]["mounts"]}
    at, _, name = env["GPUPOOL_TOKEN_FILE"].rpartition("/")
    assert (Path(mounts[at]["hostPath"]) / name).read_text() == kubelet.token(made)
    assert all("ro" in mount["options"] for mount in mounts.values())
    assert kubelet.token(made).startswith("gpl_")
    assert "gpl_" not in json.dumps(spec)
    # Nobody else on the node gets at the token.
    assert kubelet.folders.data.stat().st_mode & 0o777 == 0o700
    assert (await kubelet.unprepare(made)).error == ""
    assert list(kubelet.folders.cdi.iterdir()) == []
    assert list((kubelet.folders.data / "claims").iterdir()) == []


async def test_a_second_call_gives_the_same_and_a_restart_forgets_nothing(
    kubelet: Kubelet,
) -> None:
    made = await kubelet.world.given()
    first = await kubelet.prepare(made)
    assert await kubelet.prepare(made) == first
    await kubelet.plugin.close()
    assert kubelet.spec(made)
    # One that died left its sockets behind.
    (kubelet.registry / f"{NODE}-reg.sock").touch()
    kubelet.plugin = kubelet.another()
    await kubelet.plugin.start()
    assert await kubelet.prepare(made) == first
    for _ in range(2):
        assert (await kubelet.unprepare(made)).error == ""


async def test_a_token_that_was_renewed_reaches_containers(kubelet: Kubelet) -> None:
    made = await kubelet.world.given()
    await kubelet.prepare(made)
    before = kubelet.token(made)
    assert await kubelet.plugin.renew() == 0
    kubelet.world.driver = kubelet.world.another(lease_seconds=0)  # renewed at once
    kubelet.world.pool.clock.now += 5
    await kubelet.world.driver.step()
    assert await kubelet.plugin.renew() == 1
    assert kubelet.token(made) != before
    # One whose folder was left half written is left alone, and prepared again.
    (kubelet.folders.claim(made["metadata"]["uid"]) / prepared.ABOUT).write_text("{")
    assert await kubelet.plugin.renew() == 0
    assert (await kubelet.prepare(made)).error == ""


async def test_a_claim_without_an_active_lease_waits(kubelet: Kubelet) -> None:
    world = kubelet.world
    await world.pool.ask("blue", uuids=[FIRST], memory_bytes=None, share_permille=1000)
    made = await world.given(result(FIRST, bindingConditions=None))
    answer = await kubelet.prepare(made)
    assert "not active yet: position 1 in the queue" in answer.error and not answer.devices
    unseen = await world.put(claim(result(SECOND), name="unseen"))
    assert "the driver has not come to it" in (await kubelet.prepare(unseen)).error
    assert not kubelet.folders.cdi.exists()


async def test_a_lease_of_an_earlier_allocation_is_not_used(kubelet: Kubelet) -> None:
    made = await kubelet.world.given(result(FIRST))
    made["status"]["allocation"]["devices"]["results"] = [result(SECOND)]
    await kubelet.world.put(made)
    assert "not active yet" in (await kubelet.prepare(made)).error
    await kubelet.world.driver.step()
    kubelet.world.driver = kubelet.world.another()
    await kubelet.world.driver.step()
    assert (await kubelet.prepare(made)).error == ""


@pytest.mark.parametrize(
    "more",
    [
        {"uid": "../../../etc/cron.d/x"},
        {"uid": ""},
        {"uid": "x" * 65},
        {"namespace": "../../secrets"},
        {"namespace": "red/pods"},
        {"name": "a/b"},
        {"name": "%2e%2e"},
        {"name": "unknown"},
        {"uid": str(uuid.UUID(int=7))},
    ],
)
async def test_a_hostile_claim_reaches_nothing(kubelet: Kubelet, more: dict[str, str]) -> None:
    made = await kubelet.world.given()
    wrong = asked(made, **more)
    answers = await kubelet.dra(0, asked(made), wrong)
    assert answers[wrong.uid].error
    if "uid" in more:
        assert answers[made["metadata"]["uid"]].error == "", "the other claim is prepared"
    await kubelet.dra(1, wrong)
    assert (kubelet.folders.data / "dra.sock").exists()


async def test_half_a_secret_is_refused(kubelet: Kubelet) -> None:
    made = await kubelet.world.given()
    path = secret_path(NAMESPACE, made["metadata"]["uid"])
    kept = kubelet.world.api.objects[path]
    good = dict(kept["data"])
    newline = base64.b64encode(b"tcp://n1:7700\nLD_PRELOAD=/x").decode()
    for key, value in (
        ("token", None),
        ("token", "%%%"),
        ("servers", newline),
        ("servers", 7),
        ("servers", "A" * 9000),
        ("devices", base64.b64encode(b"[" * 5000).decode()),
        ("claim", base64.b64encode(b"another").decode()),
    ):
        kept["data"] = {**good, key: value}
        answer = await kubelet.prepare(made)
        assert answer.error.startswith("gpupool: ") and not answer.devices, (key, value)
    kept["data"] = good
    assert (await kubelet.prepare(made)).error == ""


async def test_an_api_server_that_is_away_is_an_error_of_the_claim(kubelet: Kubelet) -> None:
    made = await kubelet.world.given()
    kubelet.world.api.away = 1
    assert "503" in (await kubelet.prepare(made)).error
    assert (await kubelet.prepare(made)).error == ""


async def test_bytes_are_those_of_the_documented_fields(kubelet: Kubelet) -> None:
    """Written by hand: field 1 of the request is a claim of namespace, uid and name."""
    made = await kubelet.world.given()
    uid, name = made["metadata"]["uid"].encode(), b"train-gpu"
    sent = b"\x0a\x03red" + b"\x12" + bytes([len(uid)]) + uid + b"\x1a\x09" + name
    request = b"\x0a" + bytes([len(sent)]) + sent
    path = kubelet.folders.data / "dra.sock"
    service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    answer = await kubelet.raw(path, f"{service}/NodePrepareResources", request)
    assert uid in answer and b"\x12\x07gpupool" in answer
    assert b"\x1a" + bytes([len(slices.device_name(FIRST))]) in answer
    for garbage in (b"\xff" * 9, b"\x0a\x7f", b"\x0a\x02\x12\x05"):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.raw(path, f"{service}/NodePrepareResources", garbage)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await kubelet.raw(path, f"{service}/NodeFormatDisk", b"")
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await kubelet.raw(path, f"{service}/NodePrepareResources", b"") == b"", "it serves on"
