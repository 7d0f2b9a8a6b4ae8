"""``gpupool-kubernetes kubelet-plugin``: one on each node."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from gpupool_common import logs
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.command import api_address, ended
from gpupool_kubernetes.config import Settings, load_settings
from gpupool_kubernetes.controller import namespace_of
from gpupool_kubernetes.dra.plugin import Plugin
from gpupool_kubernetes.dra.prepared import Folders
from gpupool_kubernetes.names import DRA_DRIVER

KUBELET = Path("/var/lib/kubelet")


async def serve(settings: Settings, folders: Folders, registry: Path) -> None:
    """Answer the kubelet until SIGTERM."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    cluster = Cluster(api_address(settings))
    plugin = Plugin(cluster, namespace_of(settings), folders, registry)
    try:
        await plugin.start()
        await stopping.wait()
    finally:
        await plugin.close()
        await cluster.close()


def kubelet_plugin(
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None,
    libraries_host: Annotated[
        Path, typer.Option(help="on the host: the folder with the client libraries in lib/")
    ] = Path("/var/lib/gpupool/client"),
    data: Annotated[
        Path, typer.Option(help="on the host: the plug-in's own folder, and its socket")
    ] = KUBELET / "plugins" / DRA_DRIVER,
    registry: Annotated[
        Path, typer.Option(help="on the host: where the kubelet looks for plug-ins")
    ] = KUBELET / "plugins_registry",
    cdi: Annotated[
        Path, typer.Option(help="on the host: where the container runtime looks for CDI files")
    ] = Path("/var/run/cdi"),
) -> None:
    """Give containers what they need for the GPUs of their claims. One runs on each node."""
    with ended():
        settings = load_settings(config, {})
        logs.configure(settings.log_level, settings.log_json)
        asyncio.run(serve(settings, Folders(data, cdi, libraries_host), registry))


def add_to(app: typer.Typer) -> None:
    app.command("kubelet-plugin")(kubelet_plugin)
