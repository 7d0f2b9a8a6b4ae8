"""``gpupool-kubernetes dra-driver``: one for a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_common.setting_options import with_settings
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.command import api_address, ended
from gpupool_kubernetes.config import TABLES, Settings, load_settings
from gpupool_kubernetes.controller import cluster_id_of, namespace_of
from gpupool_kubernetes.dra.driver import Driver, check_api
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.tenants import Tenants

#: Between two passes of the driver.
STEP_SECONDS = 3.0

_log = logs.get("dra")


async def drive(settings: Settings) -> None:
    """Pass after pass, until the process ends; it keeps nothing that would be lost."""
    cluster, manager = Cluster(api_address(settings)), ManagerClient.of(settings)
    try:
        await check_api(cluster)
        driver = Driver(
            cluster,
            manager,
            Tenants(settings.tenants),
            namespace_of(settings),
            await cluster_id_of(cluster),
            settings.lease_seconds,
            settings.queue_seconds,
        )
        _log.info("ready", pool=settings.pool)
        while True:
            try:
                await driver.step()
            except GpupoolError as error:
                _log.warning("tried again soon", reason=str(error))
            await asyncio.sleep(STEP_SECONDS)
    finally:
        manager.close()
        await cluster.close()


def dra_driver(
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None, **flags: object
) -> None:
    """Publish the pool's GPUs as devices, and take leases of those that claims were given."""
    with ended():
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
        asyncio.run(drive(settings))


def add_to(app: typer.Typer) -> None:
    app.command("dra-driver")(with_settings(Settings, dra_driver, TABLES))
