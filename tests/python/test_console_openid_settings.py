"""The settings of signing in by OpenID Connect."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from console_visitor import database  # noqa: F401
from gpupool_common.errors import ConfigError
from gpupool_manager.config import load_settings
from gpupool_manager.console.openid import Rules
from gpupool_manager.problems import Problem
from gpupool_manager.tenancy import Tenancy
from gpupool_manager.transaction import Transaction
from manager_rest import Rest

ISSUER = "https://login.example"
BACK = "http://pool/console/openid/back"
GIVEN = {"openid_issuer": ISSUER, "openid_client": "gpupool", "console_url": "http://pool"}


def test_settings_go_together(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    found = load_settings(None, {**GIVEN, "openid_secret_file": str(secret)}, {}).openid()
    assert found is not None and found.rules == Rules(ISSUER, "gpupool", "s3cret", BACK)
    assert load_settings(None, {}, {}).openid() is None
    for lacking in ("openid_client", "console_url"):
        with pytest.raises(ConfigError, match=lacking):
            load_settings(None, {k: v for k, v in GIVEN.items() if k != lacking}, {})
    for bad in ("http://login.example", "login.example", "ftp://a"):
        with pytest.raises(ConfigError, match="openid-issuer"):
            load_settings(None, {**GIVEN, "openid_issuer": bad}, {})


def test_no_tenant_is_called_as_operators_are(rest: Rest) -> None:
    """Of the words that are the default, `gpupool-operators` was both."""
    barred = load_settings(None, GIVEN, {}).rules.no_tenant
    assert barred == "operators" and load_settings(None, {}, {}).rules.no_tenant is None
    assert Rules(ISSUER, "gpupool", "", BACK, operators="staff").barred is None
    pool = rest.world.pool
    tenancy = Tenancy(pool.ledger, pool.leases, barred)
    with pytest.raises(Problem, match="openid_operators"):
        tenancy.create(Transaction(0.0), barred, "", {})
