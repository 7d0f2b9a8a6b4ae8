"""``gpupool-kubernetes setup``: what the parts of an installation need of each other, as Secrets.

It runs beside the manager and alone reads the admin's token there. Each round looks what is
missing, and makes that: the certificate of webhook and controller, the tokens by which they and
Prometheus come to the manager, and a token for each GPU host to join with. What an operator has
revoked it does not make again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from cryptography import x509

from gpupool_common import certificate, logs
from gpupool_common.errors import GpupoolError, PoolRefusedError
from gpupool_common.setting_options import with_settings
from gpupool_kubernetes.cluster import Cluster, Object
from gpupool_kubernetes.command import api_address, ended
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.setup_settings import SetupSettings, load_settings

#: A certificate with less than this before it is replaced; who signs is told long before it ends.
RENEW_BEFORE = datetime.timedelta(days=365)
#: For a host that is to join; once it has, its key counts.
JOIN_SECONDS = 7 * 86400

TLS, POOL, JOIN = "gpupool-tls", "gpupool-pool", "gpupool-join"

_log = logs.get("setup")


class Setup:
    """One installation."""

    def __init__(self, cluster: Cluster, manager: ManagerClient, settings: SetupSettings) -> None:
        self._cluster, self._manager, self._settings = cluster, manager, settings

    async def run(self) -> None:
        """Until cancelled; what does not answer is asked again."""
        while True:
            try:
                await self.round()
            except GpupoolError as error:
                _log.warning("not yet", reason=str(error))
            await asyncio.sleep(self._settings.every_seconds)

    async def round(self) -> None:
        """Look at everything once."""
        await self._tls()
        await self._pool()
        await self._join()

    # Certificates ----------------------------------------------------------------------------

    async def _tls(self) -> None:
        held = await self._held(TLS)
        names = sorted(
            f"{service}.{self._settings.namespace}.svc" for service in self._settings.services
        )
        if not _is_good(held.get("tls.crt", b""), names):
            made, key = certificate.pair("gpupool", [x509.DNSName(name) for name in names])
            # Who has the new one may meet who still shows the old one, and is to trust both.
            trusted = made + held.get("tls.crt", b"")
            await self._put(TLS, {"tls.crt": made, "tls.key": key, "ca.crt": trusted}, held)
            held = {**held, "ca.crt": trusted}
            _log.info("a certificate was made", names=names)
        await self._trust(base64.b64encode(held["ca.crt"]).decode())

    async def _trust(self, bundle: str) -> None:
        """Let the API server know whom to trust when it asks the webhook."""
        path = (
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
            + self._settings.webhook
        )
        found = await self._cluster.find(path)
        hooks = (found or {}).get("webhooks") or []
        if found is None or all(hook["clientConfig"].get("caBundle") == bundle for hook in hooks):
            return
        for hook in hooks:
            hook["clientConfig"]["caBundle"] = bundle
        version = found["metadata"]["resourceVersion"]
        # The list as a whole: somebody else's change in between makes this one a conflict.
        body = {"metadata": {"resourceVersion": version}, "webhooks": hooks}
        await self._cluster.patch(path, body)

    # The manager -----------------------------------------------------------------------------

    async def _pool(self) -> None:
        held = await self._held(POOL)
        state = self._settings.state_dir
        changes = {
            "fingerprint": _read(state / certificate.FINGERPRINT),
            "ca.crt": _read(state / certificate.CERTIFICATE),
        }
        for key, scope in (("token", "admin"), ("metrics-token", "metrics")):
            known = held.get(key, b"").decode("ascii", "replace").strip()
            if not known or not await self._manager.knows(known):
                body = {"scope": scope, "description": f"Kubernetes: {POOL}"}
                made = await self._manager.do("POST", "/tokens", body)
                changes[key] = str(made["secret"]).encode()
                _log.info("a token was made", scope=scope)
        await self._put(POOL, changes, held)

    # Hosts -----------------------------------------------------------------------------------

    async def _join(self) -> None:
        held = await self._held(JOIN)
        tokens = await self._manager.all("/tokens", {"scope": "node"})
        joined = {str(node["name"]) for node in await self._manager.all("/nodes")}
        latest = {str(token["node"]): token for token in tokens}
        changes: dict[str, bytes] = {}
        for name in sorted(await self._hosts()):
            if name in held and not _is_stale(latest.get(name), name in joined):
                continue
            body = {"scope": "node", "node": name, "lifetime_seconds": JOIN_SECONDS}
            try:
                made = await self._manager.do("POST", "/tokens", body)
            except PoolRefusedError as error:  # a name that no node of a pool can have
                _log.warning("a host cannot join", node=name, reason=str(error))
                continue
            changes[name] = str(made["secret"]).encode()
            _log.info("a host may join", node=name)
        await self._put(JOIN, changes, held)

    async def _hosts(self) -> set[str]:
        found = set()
        for selector in self._settings.node_selectors:
            query = {"labelSelector": selector} if selector else {}
            nodes, _ = await self._cluster.list("/api/v1/nodes", **query)
            found |= {str(node["metadata"]["name"]) for node in nodes}
        return found

    # Secrets ---------------------------------------------------------------------------------

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._settings.namespace}/secrets/{name}".rstrip("/")

    async def _held(self, name: str) -> dict[str, bytes]:
        """What a Secret has; nothing if it is not there."""
        found = await self._cluster.find(self._path(name))
        return _decoded((found or {}).get("data") or {})

    async def _put(
        self, name: str, changes: Mapping[str, bytes], held: Mapping[str, bytes]
    ) -> None:
        """Change what differs; a Secret that is not there is made, with nothing if need be."""
        changed = {key: value for key, value in changes.items() if held.get(key) != value}
        data = {key: base64.b64encode(value).decode() for key, value in changed.items()}
        if await self._cluster.find(self._path(name)) is None:
            await self._cluster.create(self._path(), _secret(name, data))
        elif changed:
            await self._cluster.patch(self._path(name), {"data": data})


def _secret(name: str, data: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "gpupool"}},
        "type": "Opaque",
        "data": dict(data),
    }


def _decoded(data: Mapping[str, Any]) -> dict[str, bytes]:
    """What of it is base64: the rest is somebody's mistake, and made anew."""
    found = {}
    for key, value in data.items():
        try:
            found[key] = base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            _log.warning("a Secret holds something that is no base64", key=key)
    return found


def _is_good(pem: bytes, names: list[str]) -> bool:
    try:
        found = x509.load_pem_x509_certificate(pem)
        of = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return sorted(of.get_values_for_type(x509.DNSName)) == names and left > RENEW_BEFORE


def _is_stale(token: Mapping[str, Any] | None, joined: bool) -> bool:
    """Whether a host can come in no more with the token that it has, by nobody's wish."""
    if token is None:  # of another manager, or of one that has forgotten it
        return not joined
    if joined or token.get("revoked") is not None:
        return False
    expires = token.get("expires")
    now = datetime.datetime.now(datetime.UTC)
    return expires is not None and datetime.datetime.fromisoformat(str(expires)) <= now


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GpupoolError(f"the manager has not begun: {path}: {error.strerror}") from None


async def _run(settings: SetupSettings) -> None:
    # The manager's own files come with its first start.
    while not all((settings.state_dir / name).exists() for name in settings.awaited):
        _log.info("waiting for the manager's first start")
        await asyncio.sleep(settings.every_seconds)
    address = api_address(settings)
    manager = ManagerClient.at(settings.pool, settings.state_dir / "admin.token", settings.pin)
    cluster = Cluster(address)
    try:
        await Setup(cluster, manager, settings).run()
    finally:
        manager.close()
        await cluster.close()


def setup(
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None, **flags: object
) -> None:
    """Beside the manager: make tokens and certificates for the others, as Secrets."""
    with ended():
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
        uvloop.run(_run(settings))


def add_to(app: typer.Typer) -> None:
    app.command("setup")(with_settings(SetupSettings, setup))
