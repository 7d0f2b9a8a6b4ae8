"""/v1/tenants and /v1/quotas."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gpupool_manager import views
from gpupool_manager.api_common import Admin, Pages, Reply, ThePool, User, Write, send
from gpupool_manager.schemas import (
    Page,
    QuotaIn,
    QuotaOut,
    TenantChange,
    TenantIn,
    TenantName,
    TenantOut,
)
from gpupool_manager.transaction import Transaction

router = APIRouter(tags=["tenants"])


@router.get("/tenants", response_model=Page[TenantOut])
async def list_tenants(pool: ThePool, caller: Admin, pages: Pages) -> Response:
    """All tenants, by name."""
    ledger = pool.ledger
    items = ledger.tenants.values()
    return send(pages.cut(items, lambda t: (t.name,), lambda t: views.tenant(ledger, t), str))


@router.post("/tenants", response_model=TenantOut, status_code=201)
async def create_tenant(body: TenantIn, pool: ThePool, caller: Admin, write: Write) -> Response:
    """A new tenant with a quota."""

    def create(transaction: Transaction) -> Reply:
        quota = body.quota.values()
        tenant = pool.tenancy.create(transaction, body.name, body.description, quota)
        return Reply(views.tenant(pool.ledger, tenant), 201, tenant.version)

    return await write.do(caller, create)


@router.get("/tenants/{name}", response_model=TenantOut)
async def get_tenant(name: TenantName, pool: ThePool, caller: User) -> Response:
    """One tenant; a tenant's token may ask for its own."""
    caller.tenant(name)
    tenant = pool.tenancy.find(name)
    return send(views.tenant(pool.ledger, tenant), tenant.version)


@router.patch("/tenants/{name}", response_model=TenantOut)
async def change_tenant(
    name: TenantName, body: TenantChange, pool: ThePool, caller: Admin, write: Write
) -> Response:
    """Change its description, disable it, enable it."""

    def change(transaction: Transaction) -> Reply:
        write.check(pool.tenancy.find(name).version)
        tenant = pool.tenancy.change(transaction, name, body.model_dump(exclude_none=True))
        return Reply(views.tenant(pool.ledger, tenant), 200, tenant.version)

    return await write.do(caller, change)


@router.delete("/tenants/{name}", status_code=204)
async def remove_tenant(name: TenantName, pool: ThePool, caller: Admin, write: Write) -> Response:
    """Forget it and its tokens. 409 while it has leases."""

    def remove(transaction: Transaction) -> Reply:
        write.check(pool.tenancy.find(name).version)
        pool.tenancy.remove(transaction, name)
        return Reply(status=204)

    return await write.do(caller, remove)


@router.get("/quotas", response_model=Page[QuotaOut])
async def list_quotas(pool: ThePool, caller: Admin, pages: Pages) -> Response:
    """All quotas with what is in use, by tenant."""
    ledger = pool.ledger
    items = ledger.quotas.values()
    return send(pages.cut(items, lambda q: (q.tenant,), lambda q: views.quota(ledger, q), str))


@router.get("/tenants/{name}/quota", response_model=QuotaOut)
async def get_quota(name: TenantName, pool: ThePool, caller: User) -> Response:
    """A tenant's quota with what is in use and what waits."""
    caller.tenant(name)
    pool.tenancy.find(name)
    quota = pool.ledger.quotas[name]
    return send(views.quota(pool.ledger, quota), quota.version)


@router.put("/tenants/{name}/quota", response_model=QuotaOut)
async def set_quota(
    name: TenantName, body: QuotaIn, pool: ThePool, caller: Admin, write: Write
) -> Response:
    """A whole new quota. What is granted already stays, even if it is more."""

    def change(transaction: Transaction) -> Reply:
        pool.tenancy.find(name)
        write.check(pool.ledger.quotas[name].version)
        quota = pool.tenancy.set_quota(transaction, name, body.values())
        return Reply(views.quota(pool.ledger, quota), 200, quota.version)

    return await write.do(caller, change)
