"""A list of the cluster's that is kept up to date by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_kubernetes.cluster import Cluster, GoneError, Object

_log = logs.get("watch")

PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


def key_of(found: Object) -> str:
    """``NAMESPACE/NAME``, or the name alone."""
    meta = found.get("metadata") or {}
    return "/".join(str(meta[part]) for part in ("namespace", "name") if meta.get(part))


class Informer:
    """All objects of a path, and a call for each that is new, different or gone."""

    def __init__(
        self, cluster: Cluster, path: str, changed: Callable[[str, Object | None, Object], None]
    ) -> None:
        """``changed(key, now, last)``; ``now`` is None for what is gone."""
        self._cluster, self._path, self._changed = cluster, path, changed
        self.objects: dict[str, Object] = {}
        #: The first list is there.
        self.synced = asyncio.Event()

    async def run(self, **query: str) -> None:
        """Until cancelled: list, watch, and begin anew where a watch cannot go on."""
        version, pause = "", PAUSE_SECONDS
        while True:
            try:
                if not version:
                    version = await self._list(query)
                    self.synced.set()
                async for kind, found in self._cluster.watch(self._path, version, **query):
                    version = str((found.get("metadata") or {}).get("resourceVersion") or version)
                    self._take(kind, found)
                    pause = PAUSE_SECONDS
            except GoneError:
                version = ""
            except GpupoolError as error:
                if getattr(error, "status", None) == 410:
                    version = ""
                _log.warning("the watch is begun again", path=self._path, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _list(self, query: dict[str, str]) -> str:
        found, version = await self._cluster.list(self._path, **query)
        there = {key_of(each): each for each in found}
        for key in self.objects.keys() - there.keys():
            self._take("DELETED", self.objects[key])
        for each in there.values():
            self._take("MODIFIED", each)
        return version

    def _take(self, kind: str, found: Object) -> None:
        if kind == "BOOKMARK":
            return
        key = key_of(found)
        last = self.objects.get(key, found)
        if kind == "DELETED":
            self.objects.pop(key, None)
            self._changed(key, None, last)
            return
        self.objects[key] = found
        if _identity(last) != _identity(found):  # another pod of the same name
            self._changed(key, None, last)
        self._changed(key, found, last)


def _identity(found: Object) -> object:
    return (found.get("metadata") or {}).get("uid")
