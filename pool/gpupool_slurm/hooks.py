"""What prolog, task prolog and epilog do, and who renews leases between them.

A prolog that fails drains its node, so only what is wrong with the node may fail: what is wrong
with a job is written down for its tasks, and the first of them says it and ends.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpupool.pool_address import TOKEN
from gpupool.pool_client import PoolClient, at
from gpupool.run import client_environment
from gpupool_common import paths
from gpupool_common.ask import with_key
from gpupool_common.errors import GpupoolError, PoolRefusedError
from gpupool_slurm.job import Job, JobError, gres_of, request
from gpupool_slurm.settings import Settings

#: In a job's folder: root's alone; the user's alone; for all.
LEASE, TOKEN_FILE, SERVERS, REFUSED = "lease.json", "token", "servers", "refused"

#: What the manager answers another request in vain.
_GONE = (404, 409)


def folder_of(settings: Settings, job: str) -> Path:
    return settings.run_dir / job


def prolog(settings: Settings, env: Mapping[str, str]) -> None:
    """Take a job's lease, and leave what its tasks need. GpupoolError: the node is at fault."""
    job = Job.of(env)
    folder = folder_of(settings, job.id)
    try:
        asked = request(gres_of(settings.scontrol, job.id))
        if asked is None:
            return
        body = {
            **asked,
            "tenant": settings.tenant_of(job.account),
            "label": job.label,
            "ttl_seconds": settings.ttl_seconds,
            "wait_seconds": settings.wait_seconds,
        }
        _make(folder)
        (folder / REFUSED).unlink(missing_ok=True)  # of a start before this one
        with PoolClient(settings.where()) as client:
            lease = _obtain(client, body, job.key, settings.wait_seconds)
        _write(folder / LEASE, json.dumps({"id": lease["id"]}), None)
        _hand_over(folder, lease, job.uid)
    except (JobError, PoolRefusedError) as error:
        if isinstance(error, PoolRefusedError) and error.status == 401:
            raise  # of this node's token
        _make(folder)
        _write(folder / REFUSED, " ".join(str(error).split()) + "\n", job.uid)


def _obtain(client: PoolClient, body: Mapping[str, Any], key: str, wait: int) -> dict[str, Any]:
    lease = client.do("POST", "/leases", body, key=key)
    if lease["state"] not in ("active", "queued"):  # an older job's, which had this number
        lease = client.do("POST", "/leases", body)
    while lease["state"] == "queued" and wait > 0:
        asked = min(wait, 60)
        lease = client.get(at("leases", lease["id"]), {"wait": asked}, wait=asked)
        wait -= asked
    if lease["state"] != "active":
        if lease["state"] == "queued":
            client.do("POST", at("leases", lease["id"], "release"))
        raise JobError(f"the pool has no room: {lease.get('reason')}")
    return lease


def task_prolog(settings_dir: Path, env: Mapping[str, str]) -> tuple[list[str], int]:
    """The lines that Slurm reads, and the exit code: a task without its lease does not start."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        raise JobError("SLURM_JOB_ID is not set: Slurm's task prolog runs this")
    folder = settings_dir / job
    refused = folder / REFUSED
    if refused.is_file():
        return [f"print gpupool: {refused.read_text(encoding='utf-8').strip()}"], 1
    if not (folder / SERVERS).is_file():
        return [], 0
    servers = (folder / SERVERS).read_text(encoding="ascii").strip()
    made = client_environment(paths.find_home(), servers, folder / TOKEN_FILE, env, None)
    lines = [f"export {key}={value}" for key, value in made.items() if env.get(key) != value]
    # A token of the environment would come before the file.
    return [*lines, *(f"unset {name}" for name in ("GPUPOOL_TOKEN", TOKEN) if name in env)], 0


def epilog(settings: Settings, env: Mapping[str, str]) -> None:
    """Give a job's lease back; a second time, or without a lease, it does nothing.

    If the manager is away the folder stays, and :func:`renew` gives the lease back later: an
    epilog that fails would drain the node.
    """
    folder = folder_of(settings, Job.of(env).id)
    if not folder.is_dir():
        return
    lease = _lease_of(folder)
    for name in (TOKEN_FILE, SERVERS, REFUSED):
        (folder / name).unlink(missing_ok=True)
    if lease is not None:
        try:
            with PoolClient(settings.where()) as client:
                client.do("POST", at("leases", lease, "release"))
        except PoolRefusedError as error:
            if error.status not in _GONE:
                return
        except GpupoolError:
            return
    shutil.rmtree(folder, ignore_errors=True)


def renew(settings: Settings) -> list[str]:
    """Renew the leases of this node's jobs, and their tokens; what went wrong, by job."""
    wrong: list[str] = []
    folders = list(_folders(settings))
    if not folders:
        return wrong
    with PoolClient(settings.where()) as client:
        for folder, lease in folders:
            try:
                if not (folder / SERVERS).is_file():  # its job has ended while the pool was away
                    client.do("POST", at("leases", lease, "release"))
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                found = client.do("POST", at("leases", lease, "renew"))
                _hand_over(folder, found, (folder / TOKEN_FILE).stat().st_uid)
            except PoolRefusedError as error:
                wrong.append(f"job {folder.name}: {error}")
                if error.status in _GONE and not (folder / SERVERS).is_file():
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # its epilog has just come
    return wrong


def _folders(settings: Settings) -> Iterator[tuple[Path, str]]:
    for folder in sorted(settings.run_dir.glob("*")):
        lease = _lease_of(folder) if folder.name.isdigit() else None
        if lease is not None:
            yield folder, lease


def _lease_of(folder: Path) -> str | None:
    try:
        found = json.loads((folder / LEASE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    lease = found.get("id") if isinstance(found, dict) else None
    return lease if isinstance(lease, str) else None


def _hand_over(folder: Path, lease: Mapping[str, Any], uid: int) -> None:
    """Servers and token for the job's user."""
    servers = ",".join(with_key(str(each["address"]), each.get("key")) for each in lease["servers"])
    _write(folder / TOKEN_FILE, f"{lease['token']}\n", uid)
    _write(folder / SERVERS, f"{servers}\n", uid)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise GpupoolError(f"{folder}: cannot be made: {error.strerror}") from None


def _write(path: Path, text: str, uid: int | None) -> None:
    """As a whole, for this user alone; None: for us."""
    draft = path.with_name(f".{path.name}")
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if uid is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), uid, -1)
        draft.replace(path)
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None
