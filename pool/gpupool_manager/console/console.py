"""Puts the console's parts together."""

from __future__ import annotations

from fastapi import APIRouter

from gpupool_manager.console import (
    changes,
    more_pages,
    openid_pages,
    pages,
    signing_in,
    stream,
    trial,
)

PARTS = (signing_in, openid_pages, pages, more_pages, changes, trial, stream)


def make_router() -> APIRouter:
    """All pages."""
    router = APIRouter()
    for part in PARTS:
        router.include_router(part.router)
    return router
