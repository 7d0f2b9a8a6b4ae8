"""/v1/keys: what signs lease tokens, and what the link to nodes is encrypted with."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gpupool_common.errors import GpupoolError
from gpupool_manager import views
from gpupool_manager.api_common import Admin, Pages, Reply, ThePool, Write, send
from gpupool_manager.problems import Problem
from gpupool_manager.schemas import Page
from gpupool_manager.schemas_keys import KeyOut, KeyRoll, LinkKeyOut, LinkKeyRetire
from gpupool_manager.transaction import Transaction

router = APIRouter(prefix="/keys", tags=["keys"])


@router.get("", response_model=Page[KeyOut])
async def list_keys(pool: ThePool, caller: Admin, pages: Pages) -> Response:
    """The keys that sign lease tokens, oldest first; never the secrets."""
    keys = pool.signer.ring.keys
    return send(
        pages.cut(keys, lambda k: (int(k.made), k.id), lambda k: views.key(pool, k), int, str)
    )


@router.post("/roll", response_model=KeyOut, status_code=202)
async def roll_keys(body: KeyRoll, pool: ThePool, caller: Admin, write: Write) -> Response:
    """Make another key. It signs once all nodes have it; tokens that are out stay good.

    With ``revoke`` it signs at once, and whatever was signed before is refused.
    """

    def roll(transaction: Transaction) -> Reply:
        rolls = pool.key_rolls
        try:
            key = rolls.replace(transaction) if body.revoke else rolls.begin(transaction)
        except GpupoolError as error:
            raise Problem(409, "in-use", str(error)) from None
        return Reply(views.key(pool, key), 202)

    return await write.do(caller, roll)


@router.get("/link", response_model=LinkKeyOut)
async def get_link_key(pool: ThePool, caller: Admin) -> Response:
    """The keys by which nodes know the manager; never the secrets."""
    return send(views.link_key(pool))


@router.post("/link/roll", response_model=LinkKeyOut, status_code=202)
async def roll_link_key(pool: ThePool, caller: Admin, write: Write) -> Response:
    """Make the next key and tell nodes. The link has it once the current one is retired."""

    def roll(transaction: Transaction) -> Reply:
        pool.link_key_rolls.begin(transaction)
        return Reply(views.link_key(pool), 202)

    return await write.do(caller, roll)


@router.post("/link/retire", response_model=LinkKeyOut)
async def retire_link_key(
    body: LinkKeyRetire, pool: ThePool, caller: Admin, write: Write
) -> Response:
    """The link has the next key from now on. 409 while a node does not have that."""

    def retire(transaction: Transaction) -> Reply:
        pool.link_key_rolls.retire(transaction, body.force)
        return Reply(views.link_key(pool))

    return await write.do(caller, retire)
