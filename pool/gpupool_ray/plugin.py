"""The plug-in of Ray's runtime environments: each worker takes a lease, and gives it back.

Ray starts a worker by the executable that its environment names. Here that is ``gpupool run``:
it asks the pool, waits, starts the worker, renews the lease while the worker lives and releases
it when the worker has ended, however that was.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from pathlib import Path
from typing import Any

from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from gpupool.pool_address import choose
from gpupool.pool_client import PoolClient
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_ray.launcher import Request

#: Ray hides all GPUs from workers that ask it for none; those of a pool are not Ray's to hide.
_HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


class GpupoolPlugin(RuntimeEnvPlugin):  # type: ignore[misc] # Ray has no types for it
    """``runtime_env={"gpupool": {"gpus": 1, "memory": "8GiB", "share": "50%"}}``."""

    name = "gpupool"
    #: Behind all others: what they make of the worker's executable is what we start.
    priority = 100

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        try:
            Request(runtime_env_dict[GpupoolPlugin.name])
        except ConfigError as error:
            raise ValueError(str(error)) from None

    async def create(
        self,
        uri: str | None,
        runtime_env: dict[str, Any],
        context: RuntimeEnvContext,
        logger: logging.Logger,
    ) -> float:
        """Ask the pool what would come of it: who asks too much is told at once, and by Ray."""
        try:
            decision = await asyncio.to_thread(_ask, Request(runtime_env[self.name]))
        except GpupoolError as error:
            raise RuntimeError(f"gpupool: {error}") from None
        logger.info("gpupool: %s", decision)
        if decision.startswith("over the quota"):
            raise RuntimeError(f"gpupool: {decision}")
        return 0

    def modify_context(
        self,
        uris: list[str],
        runtime_env: dict[str, Any],
        context: RuntimeEnvContext,
        logger: logging.Logger,
    ) -> None:
        command = shlex.join(Request(runtime_env[self.name]).command())
        # Ray hands the executable to a shell, so it may be more than a path already.
        context.py_executable = f"{command} {context.py_executable}"
        context.env_vars.setdefault(_HIDES, "0")


def _ask(request: Request) -> str:
    token_file, ca = request.place("token_file"), request.place("ca")
    where = choose(
        request.place("pool"),
        None if token_file is None else Path(token_file),
        None if ca is None else Path(ca),
    )
    with PoolClient(where) as client:
        answer = client.do("POST", "/leases/explain", request.body)
    return str(answer.get("decision"))
