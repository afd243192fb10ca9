"""Keeps the worker processes together under a limit of memory: the model that was used longest ago goes first.

Knows pools and what their processes take; knows no model and no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from service.worker import Worker

log = logging.getLogger("starling.memory")

LOOK_S = 0.5
"""Seconds between two looks. A process needs longer than that before it begins to read its weights."""


def rss_bytes(worker: Worker) -> int:
    """Resident memory of a pool's processes. On macOS it blocks for some milliseconds."""
    return sum(line.rss_bytes for line in worker.stats())


class Keeper:
    """Unloads `models` while all of `workers` take more than `limit` bytes (0: whatever they take).

    Never one that has a job, and never the one that was used last: alone over the limit, it would be loaded anew for
    each request. A model that is about to load again counts as large as it was before.
    """

    def __init__(self, workers: Sequence[Worker], models: Sequence[Worker], limit: int) -> None:
        self._workers = workers
        self._models = models
        self._limit = limit
        self._sizes: dict[str, int] = {}
        """What each pool took when it was last seen ready, by its name."""
        self._warned = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again meanwhile."""
        if not self._limit:
            yield
            return
        looking = asyncio.create_task(self._run(), name="memory")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def look(self) -> None:
        """Unload until the limit is kept, or until there is nothing more to unload."""
        while (taken := await asyncio.to_thread(self._taken)) > self._limit:
            if (oldest := self._oldest()) is None:
                self._warn(taken)
                return
            if (why := await oldest.unload()) is not None:
                log.debug("%s stays for now: %s", oldest.name, why)
                return
            log.info("unloaded %s: the workers took %d MiB of %d", oldest.name, taken >> 20, self._limit >> 20)
        self._warned = False

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # The last wall: a bug in here must not end what keeps the memory bounded.
                log.exception("the workers' memory could not be looked after")
            await asyncio.sleep(LOOK_S)

    def _taken(self) -> int:
        return sum(map(self._size, self._workers))

    def _size(self, worker: Worker) -> int:
        size = rss_bytes(worker)
        if worker.state == "ready":
            self._sizes[worker.name] = size
        return max(size, self._sizes.get(worker.name, 0)) if worker.state == "starting" else size

    def _oldest(self) -> Worker | None:
        last = max(self._models, key=lambda worker: worker.used_at)
        idle = (each for each in self._models if each is not last and each.state == "ready" and not each.busy)
        return min(idle, key=lambda worker: worker.used_at, default=None)

    def _warn(self, taken: int) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the workers take %d MiB, more than the %d allowed, and all that is loaded is in use or was used last",
                taken >> 20,
                self._limit >> 20,
            )
