"""/v1/tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gpupool_common.node_protocol import Name
from gpupool_manager import views
from gpupool_manager.api_common import Admin, Pages, Reply, ThePool, Write, send
from gpupool_manager.records import Scope
from gpupool_manager.schemas import NewTokenOut, Page, TenantName, TokenIn, TokenOut
from gpupool_manager.tokens import join_token
from gpupool_manager.transaction import Transaction

router = APIRouter(tags=["tokens"])


@router.get("/tokens", response_model=Page[TokenOut])
async def list_tokens(
    pool: ThePool,
    caller: Admin,
    pages: Pages,
    scope: Annotated[Scope | None, Query()] = None,
    tenant: Annotated[TenantName | None, Query()] = None,
) -> Response:
    """All tokens, revoked and expired ones too, oldest first; never the secrets."""
    items = [
        token
        for token in pool.ledger.tokens.by_id.values()
        if scope in (None, token.scope) and tenant in (None, token.tenant)
    ]
    return send(pages.cut(items, lambda token: (token.id,), views.token, str))


@router.post("/tokens", response_model=NewTokenOut, status_code=201)
async def create_token(body: TokenIn, pool: ThePool, caller: Admin, write: Write) -> Response:
    """A new token. Only this answer ever shows its secret."""

    def create(transaction: Transaction) -> Reply:
        lifetime = body.lifetime_seconds
        if body.labels is not None:
            pool.tenancy.expect(transaction, body.node or "", body.labels)
        token, secret = pool.tenancy.create_token(
            transaction,
            body.scope,
            tenant=body.tenant,
            node=body.node,
            description=body.description,
            expires=None if lifetime is None else transaction.now + lifetime,
        )
        shown = NewTokenOut(
            **views.token(token).model_dump(),
            secret=join_token(secret, pool.link_keys.public if pool.join_url else []),
            nodes=pool.join_url if body.scope == "node" else None,
        )
        return Reply(shown, 201, keep=False)

    return await write.do(caller, create)


@router.get("/tokens/{id}", response_model=TokenOut)
async def get_token(id: Name, pool: ThePool, caller: Admin) -> Response:
    """One token."""
    return send(views.token(pool.tenancy.find_token(id)))


@router.delete("/tokens/{id}", status_code=204)
async def revoke_token(id: Name, pool: ThePool, caller: Admin, write: Write) -> Response:
    """It is refused from now on. 409 for the last valid admin token."""

    def revoke(transaction: Transaction) -> Reply:
        pool.tenancy.revoke_token(transaction, id)
        return Reply(status=204)

    return await write.do(caller, revoke)
