"""Tenants, their quotas and everybody's tokens."""

from __future__ import annotations

from typing import Any

from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.records import Admission, Quota, Scope, Tenant, Token
from gpupool_manager.tokens import digest, new_secret
from gpupool_manager.transaction import Transaction

DAY = 86400.0

#: For how long a node may join with a token, unless that was said.
JOIN_SECONDS = DAY


class Tenancy:
    """Every change of a tenant, a quota or a token."""

    def __init__(self, ledger: Ledger, leases: Leases, barred: str | None = None) -> None:
        self._ledger = ledger
        self._leases = leases
        self._barred = barred

    def find(self, name: str) -> Tenant:
        tenant = self._ledger.tenants.get(name)
        if tenant is None:
            raise not_found("tenant", name)
        return tenant

    def create(
        self, transaction: Transaction, name: str, description: str, quota: dict[str, Any]
    ) -> Tenant:
        if name in self._ledger.tenants:
            raise Problem(409, "exists", f"the tenant '{name}' exists already")
        if name == self._barred:
            raise bad_field(
                "body.name", "the manager's setting 'openid_operators' has that name for operators"
            )
        tenant = Tenant(name, description, False, transaction.now)
        self._ledger.tenants[name] = tenant
        self._ledger.quotas[name] = Quota(name, **quota)
        transaction.put(tenant)
        transaction.put(self._ledger.quotas[name])
        transaction.log("tenant.created", name, name, quota=quota)
        return tenant

    def change(self, transaction: Transaction, name: str, changes: dict[str, Any]) -> Tenant:
        tenant = self.find(name)
        for key, value in changes.items():
            setattr(tenant, key, value)
        tenant.version += 1
        transaction.put(tenant)
        transaction.log("tenant.changed", name, name, **changes)
        self._leases.pump(transaction)
        return tenant

    def remove(self, transaction: Transaction, name: str) -> None:
        """Forget a tenant and its tokens; it must have no leases."""
        tenant = self.find(name)
        if leases := sum(1 for _ in self._ledger.leases_of(name)):
            raise Problem(
                409, "in-use", f"the tenant '{name}' has leases ({leases}); release them first"
            )
        if any(each.tenant == name for each in self._ledger.reservations.values()):
            raise Problem(409, "in-use", f"the tenant '{name}' has reservations; cancel them first")
        for token in [t for t in self._ledger.tokens.by_id.values() if t.tenant == name]:
            self._ledger.tokens.remove(token)
            transaction.drop(token)
        transaction.drop(self._ledger.quotas.pop(name))
        transaction.drop(self._ledger.tenants.pop(name))
        transaction.log("tenant.removed", tenant.name)

    def set_quota(self, transaction: Transaction, name: str, values: dict[str, Any]) -> Quota:
        """A whole new quota. What is granted stays; what waits is judged again."""
        self.find(name)
        quota = Quota(name, **values, version=self._ledger.quotas[name].version + 1)
        self._ledger.quotas[name] = quota
        transaction.put(quota)
        transaction.log("quota.changed", name, name, **values)
        for lease in self._ledger.leases_of(name):
            for grant in lease.grants:
                self._ledger.touch(grant.node)  # budgets are for its server to keep
        self._leases.idle.look_again()
        self._leases.calendar.forget()
        self._leases.rethink(name)
        self._leases.pump(transaction)
        return quota

    def create_token(
        self,
        transaction: Transaction,
        scope: Scope,
        tenant: str | None = None,
        node: str | None = None,
        description: str = "",
        expires: float | None = None,
        secret: str | None = None,
    ) -> tuple[Token, str]:
        """A new token, and the secret that nobody can be told again.

        One of the scope ``node`` lets a node of this name in, until it ends.
        """
        if tenant is not None:
            self.find(tenant)
        if scope == "node":
            if node is None:
                raise bad_field("node", "a token for joining is for one node: name it")
            expires = transaction.now + JOIN_SECONDS if expires is None else expires
        secret = secret or new_secret(scope)
        token = Token(
            id=self._ledger.ids.make("token", transaction.now),
            digest=digest(secret),
            scope=scope,
            tenant=tenant,
            node=node,
            description=description,
            created=transaction.now,
            expires=expires,
        )
        self._ledger.tokens.add(token)
        transaction.put(token)
        transaction.log("token.created", token.id, tenant, scope=scope, node=node)
        return token, secret

    def expect(self, transaction: Transaction, node: str, labels: dict[str, str]) -> None:
        """What a node is to be labelled with when it joins; Problem if it is there already."""
        if node in self._ledger.nodes:
            raise Problem(
                409, "exists", f"the node '{node}' is in the pool; change its labels there"
            )
        before = self._ledger.admissions.get(node)
        admission = Admission(
            node,
            labels,
            "open" if before is None else before.mode,
            None if before is None else before.removed,
        )
        self._ledger.admissions[node] = admission
        transaction.put(admission)

    def find_token(self, name: str) -> Token:
        token = self._ledger.tokens.by_id.get(name)
        if token is None:
            raise not_found("token", name)
        return token

    def revoke_token(self, transaction: Transaction, name: str) -> Token:
        """It is refused from now on. A second time changes nothing."""
        token = self.find_token(name)
        if token.revoked is None:
            self._keep_one_admin(token, transaction.now)
            token.revoked = transaction.now
            transaction.put(token)
            transaction.log("token.revoked", name, token.tenant, scope=token.scope)
            if token.node in self._ledger.nodes:
                self._ledger.touch(token.node)  # its server is to learn of it now
        return token

    def forget_tokens(self, transaction: Transaction, most: float) -> None:
        """Those that ended as long ago as they were to last, a day at least, ``most`` at most.

        Not those with which nodes have joined: by these a node is known.
        """
        for token in list(self._ledger.tokens.by_id.values()):
            kept = most if token.expires is None else token.expires - token.created
            ends = [end for end in (token.revoked, token.expires) if end is not None]
            is_old = bool(ends) and min(ends) + max(DAY, min(kept, most)) < transaction.now
            if is_old and token.scope != "node":
                self._ledger.tokens.remove(token)
                transaction.drop(token)

    def _keep_one_admin(self, token: Token, now: float) -> None:
        others = [
            other
            for other in self._ledger.tokens.by_id.values()
            if other.scope == "admin"
            and other is not token
            and other.revoked is None
            and (other.expires is None or other.expires > now)
        ]
        if token.scope == "admin" and not others:
            raise Problem(409, "in-use", "it is the last admin token that is valid")
