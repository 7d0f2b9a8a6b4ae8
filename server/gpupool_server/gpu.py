"""One served GPU: its settings, its board, and the claims on it.

Two files of RUN/gpus are its own: INDEX.arbiter, the socket of its arbiter, and INDEX.json,
what the next server must know: settings and quotas that were changed while the server ran,
and the claims of the groups that are on it.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpupool_common import logs
from gpupool_common.protocol import one_line
from gpupool_server import claims
from gpupool_server.board import (
    SLICED,
    Board,
    BoardError,
    BoardGpu,
    OpenBoard,
    Seat,
    Snapshot,
    TurnLog,
)
from gpupool_server.claims import Claim, Headroom, tenant_of
from gpupool_server.device import Device
from gpupool_server.sharing import DEFAULTS, GpuSettings
from gpupool_server.tenants import Quota, Tenant

#: What a board's error says when there is nothing for it but a new one.
USELESS = (errno.EPROTO, errno.EUCLEAN, errno.EPIPE, errno.ETIMEDOUT)

#: More new boards than this in that time, and the sessions on the GPU are ended.
RENEWALS = 2
RENEWAL_SECONDS = 60.0


class Gpu:
    """One served GPU: its settings, its board, and the claims on it."""

    def __init__(self, device: Device, configured: GpuSettings, folder: Path) -> None:
        self.device = device
        self.index = device.index
        self.board_path = folder / f"{device.index}.arbiter"
        self.board: Board | None = None
        self.claims: dict[str, Claim] = {}
        #: What an operator changed while the server ran; over what is configured.
        self.changed = GpuSettings.model_construct()
        self.quotas: dict[str, dict[str, Any]] = {}
        self.snapshots: tuple[Snapshot | None, Snapshot | None] = (None, None)
        #: GPU time of groups that are no longer on the board.
        self.retired_busy_ns = 0
        #: The same by group, of those who asked for it to be kept.
        self.kept_busy_ns: dict[str, int] = {}
        #: Why nothing new is placed here; empty: it is well.
        self.sick = ""
        #: Groups that have their turns at the same time on other GPUs as well.
        self.gangs: set[str] = set()
        #: Tenants whose grants could not all be written.
        self.dirty: set[str] = set()
        self._open_board: OpenBoard | None = None
        self._renewed: list[float] = []
        #: Workers without an arbiter, while there is no other.
        self._orphans: dict[int, Seat] = {}
        self._configured = configured
        self._state = folder / f"{device.index}.json"
        self._log = logs.get("gpus").bind(gpu=device.index)

    @property
    def settings(self) -> GpuSettings:
        return self.changed.over(self._configured.over(DEFAULTS))

    @property
    def default_memory(self) -> int:
        return self.settings.default_memory or 0

    @property
    def free_weight(self) -> int:
        taken = sum(claim.weight for claim in self.claims.values())
        return max(0, (self.settings.max_inst or 0) - taken)

    # The board ------------------------------------------------------------------

    def open(self, open_board: OpenBoard) -> None:
        """Open the board, or make a new one if what is there cannot be used."""
        self._open_board = open_board
        try:
            self.board = open_board(self.board_path)
        except BoardError as error:
            if error.number not in USELESS:
                raise
            self._put_aside(error)
            self.board = open_board(self.board_path)

    def _put_aside(self, error: BoardError) -> None:
        """Make room for a new board; the workers of one of another release keep that."""
        aside = self.board_path.with_suffix(".arbiter.aside")
        if self.board_path.exists():
            self.board_path.replace(aside)
        self._log.error("put a board aside, made a new one", reason=str(error))

    def renew(self, error: BoardError | None) -> None:
        """A new board in place of one that cannot be used; what it counted is lost.

        Its workers come over with what they have, as soon as their grants are there, which
        are written by whoever writes the dirty ones.
        """
        if self._open_board is None:
            return
        if self.board is not None:
            self._orphans.update(self.board.orphans())
            self.board.close()
            self.board = None  # until there is another, which may need space
        if error is not None:
            self._put_aside(error)
        self.board = self._open_board(self.board_path)
        self.board.adopt(self._orphans)
        self._orphans = {}
        last = self.snapshots[1]
        self.retired_busy_ns += sum(a.busy_ns for a in last.tenants) if last else 0
        self.snapshots = (None, None)
        self.write_settings()
        self.dirty.update(tenant_of(name) for name in self.claims)
        now = time.monotonic()
        self._renewed = [when for when in self._renewed if now - when < RENEWAL_SECONDS]
        self._renewed.append(now)

    @property
    def ruined(self) -> bool:
        """Whether arbiters end again and again: something on this GPU makes them."""
        return len(self._renewed) > RENEWALS

    def forgive(self) -> None:
        """Whoever was on the ruined board has been ended: new ones start afresh."""
        self._renewed.clear()

    def write_settings(self) -> None:
        """Put the settings on the board; BoardError."""
        if self.board is None:
            return
        now = self.settings
        self.board.set_gpu(
            BoardGpu(
                policy=now.policy or "share",
                max_inst=now.max_inst or 1,
                prio_ratio=now.prio_ratio or 20,
                hardware=bool(now.hardware_slices),
                memory_total=self.device.memory_bytes,
            )
        )

    def snapshot(self) -> Snapshot | None:
        """The board as it is now; None if there is none or it cannot be read."""
        if self.board is None:
            return None
        try:
            return self.board.snapshot()
        except BoardError as error:
            self._log.error("a board cannot be read", reason=str(error))
            return None

    def turns(self, since: int) -> TurnLog | None:
        """Turns that are over, from number ``since`` on; None if its arbiter does not say."""
        if self.board is None:
            return None
        try:
            return self.board.turns(since)
        except BoardError as error:
            self._log.debug("a board does not say whose turn it was", reason=str(error))
            return None

    def charge(self, name: str, ns: int, whose: str) -> None:
        """An account pays for so much time in turns of ``whose``; nothing if it has just gone."""
        if self.board is None:
            return
        try:
            self.board.charge(name, ns, whose)
        except BoardError as error:
            self._log.debug("work in others' turns is not paid for", reason=str(error))

    def utilisation(self, name: str | None = None) -> int | None:
        """Thousandths of the last second in which a tenant, or (None) any, was at work."""
        before, last = self.snapshots
        if before is None or last is None or last.now_ns <= before.now_ns:
            return None
        earlier = {account.name: account.busy_ns for account in before.tenants}
        busy = sum(
            # A group that is new under an old name begins at 0 again.
            account.busy_ns - earlier.get(account.name, 0)
            if account.busy_ns >= earlier.get(account.name, 0)
            else account.busy_ns
            for account in last.tenants
            if name in (None, account.name)
        )
        return min(1000, 1000 * busy // (last.now_ns - before.now_ns))

    # Claims ---------------------------------------------------------------------

    def quota(self, tenant: Tenant) -> Quota:
        """The tenant's quota here, with what was changed while the server ran."""
        return dataclasses.replace(tenant.quota, **self.quotas.get(tenant.name, {}))

    def claims_of(self, tenant: str) -> dict[str, Claim]:
        return {name: claim for name, claim in self.claims.items() if tenant_of(name) == tenant}

    def headroom(self, tenant: Tenant, without: str | None = None) -> Headroom:
        """What the tenant may still claim here, its own group ``without`` not counted."""
        others = [c for name, c in self.claims_of(tenant.name).items() if name != without]
        free: int | None = None
        if self.settings.policy in SLICED:
            own = self.claims.get(without or "", Claim(weight=0)).weight
            taken = sum(claim.weight for claim in self.claims.values()) - own
            free = max(0, (self.settings.max_inst or 0) - taken)
        return Headroom(
            where=f"tenant '{tenant.name}' on GPU {self.index}",
            quota=self.quota(tenant),
            claims=tuple(others),
            memory_total=self.device.memory_bytes,
            default_memory=self.default_memory,
            free_weight=free,
        )

    def share_slices(self) -> None:
        """Give the leases of the pool slices by their shares, of those that others have not.

        Whoever calls this writes the grants.
        """
        pooled = {name: claim for name, claim in self.claims.items() if claim.pooled}
        others = sum(claim.weight for claim in self.claims.values() if not claim.pooled)
        left = (self.settings.max_inst or 0) - others
        weights = claims.slices({name: claim.share or 1 for name, claim in pooled.items()}, left)
        for name, claim in pooled.items():
            if claim.weight != weights[name]:
                self.claims[name] = dataclasses.replace(claim, weight=weights[name])
                self.dirty.add(tenant_of(name))

    def write_grants(self, tenant: Tenant, must: Iterable[str] = ()) -> None:
        """Put what follows from a tenant's claims on the board.

        BoardError if that fails for a name of ``must``; the others are tried again later.
        """
        if self.board is None:
            return
        needed = set(must)
        self.dirty.discard(tenant.name)
        for name, grant in claims.grants(self.quota(tenant), self.claims_of(tenant.name)).items():
            try:
                self.board.put(name, dataclasses.replace(grant, gang=name in self.gangs))
            except BoardError as error:
                self.dirty.add(tenant.name)
                if name in needed:
                    raise
                self._log.debug("a grant has to wait", tenant=name, reason=str(error))

    def drop(self, name: str) -> None:
        """Take a group off the board; if that cannot be yet, it is tried again later."""
        self.claims.pop(name, None)
        if self.board is None:
            return
        snapshot = self.snapshot()
        account = snapshot.account(name) if snapshot else None
        try:
            self.board.remove(name)
        except BoardError as error:
            if error.number != errno.ENOENT:
                self._log.debug("a group is still on the board", group=name, reason=str(error))
            return
        busy = account.busy_ns if account else 0
        self.retired_busy_ns += busy
        if name in self.kept_busy_ns:
            self.kept_busy_ns[name] += busy

    def look(self) -> None:
        """Once a second: take out what is on the board without a claim."""
        if self.board is None:
            self.renew(None)
            return
        try:
            snapshot = self.board.snapshot()
        except BoardError as error:
            if error.number not in USELESS:
                raise
            self.renew(error)
            return
        self.snapshots = (self.snapshots[1], snapshot)
        for account in snapshot.tenants:
            if account.name not in self.claims and account.members == 0:
                self.drop(account.name)

    # Health ---------------------------------------------------------------------

    def set_sick(self, reason: str) -> None:
        """Why nothing new is to be placed here, over restarts too; empty: it is well."""
        self.sick = reason
        self.save()

    # The file -------------------------------------------------------------------

    def save(self) -> None:
        """Write down what the next server must know."""
        state = {
            "settings": self.changed.model_dump(exclude_none=True),
            "quotas": self.quotas,
            "sick": self.sick,
            "claims": {name: claim.as_dict() for name, claim in self.claims.items()},
        }
        draft = self._state.with_suffix(".new")
        try:
            draft.write_text(json.dumps(state) + "\n", encoding="utf-8")
            draft.rename(self._state)
        except OSError as error:
            self._log.error("a GPU's state cannot be saved", reason=str(error))

    def load(self) -> dict[str, Claim]:
        """Take over an earlier server's changes; returns the claims that it knew."""
        try:
            raw: Any = json.loads(self._state.read_text(encoding="utf-8"))
            self.changed = GpuSettings.model_construct(**_checked_settings(raw.get("settings", {})))
            quotas = {str(name): dict(quota) for name, quota in raw.get("quotas", {}).items()}
            for quota in quotas.values():
                Quota(**quota)
            self.quotas = quotas
            self.sick = one_line(str(raw.get("sick", "")))[:256]
            return {str(name): Claim.parse(claim) for name, claim in raw.get("claims", {}).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._log.warning("a GPU's saved state cannot be read", reason=str(error)[:200])
            return {}


def _checked_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in ``raw``, checked as those of the configuration are."""
    shown = {
        key: "none" if key == "default_memory" and value in (0, None) else value
        for key, value in raw.items()
    }
    return GpuSettings.model_validate(shown).model_dump(exclude_none=True)
