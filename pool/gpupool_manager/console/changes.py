"""What the console changes: a form that was confirmed becomes one request to the REST API."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from gpupool_manager.console.api import at
from gpupool_manager.console.visit import Changing, Sent

router = APIRouter(include_in_schema=False)

_MODES = {"open": "is open again", "cordoned": "is cordoned", "draining": "is draining"}


@router.post("/console/nodes/{name}/mode")
async def set_mode(visit: Changing, form: Sent, name: str) -> Response:
    """Cordon a host, drain it, or open it again."""
    node = await visit.api.send("PATCH", at("nodes", name), {"mode": form.text("mode")})
    told = f"{node['name']} {_MODES[node['mode']]}; leases on it: {node['leases']}"
    return visit.done(form.text("back") or "/", told)


@router.post("/console/gpus/{uuid}/open")
async def open_gpu(visit: Changing, form: Sent, uuid: str) -> Response:
    """A GPU is well again that its server had put aside."""
    gpu = await visit.api.send("PATCH", at("gpus", uuid), {"aside": False})
    return visit.done(form.text("back") or "/", f"{gpu['uuid']} is in use again")


@router.post("/console/leases/{id}/release")
async def release(visit: Changing, form: Sent, id: str) -> Response:
    """Give a lease back, or stop waiting for it."""
    lease = await visit.api.send("POST", f"{at('leases', id)}/release")
    return visit.done(form.text("back") or "/console/leases", f"{lease['id']}: {lease['state']}")


@router.post("/console/reservations/{id}/cancel")
async def cancel(visit: Changing, form: Sent, id: str) -> Response:
    """What a reservation keeps free is everybody's again."""
    await visit.api.send("DELETE", at("reservations", id))
    return visit.done(form.text("back") or "/console/queue", f"{id} is cancelled")
