"""All sessions of this service by their ids: how many there may be, and how long each lives.

Knows limits and clocks; what happens in a session is its own matter, how it is kept the store's. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.errors import Failure, ShuttingDown, TooManySessions, UnknownSession
from protocol.events import VocabularyReport
from service.dictation.bell import to_the_end
from service.dictation.chunk import Chunk
from service.dictation.life import MARK_S, Life
from service.dictation.records import Reason
from service.dictation.request import SessionRequest
from service.dictation.session import Accepted, Session
from service.dictation.store import Store, Stored
from service.dictation.story import SessionState
from service.transcripts import Transcript

log = logging.getLogger("starling.dictation")


@dataclass(frozen=True)
class Limits:
    idle_s: float
    """A session without audio for so many seconds is finished."""
    keep_s: float
    """One that has ended is removed after so many seconds."""
    most: int
    """Sessions that have not ended, at once."""
    most_of_one: int
    """Of these, of one client. Those that an earlier service left are nobody's."""


class View(msgspec.Struct, frozen=True):
    """A session as its client sees it. `created` and `expires_at` in Unix seconds."""

    id: str
    model: str
    state: SessionState
    created: int
    expires_at: int
    """When it is finished for want of audio; once it has ended, when it is removed."""
    samples: int
    duration: float
    text: str


@dataclass(eq=False)
class _Entry:
    stored: Stored
    session: Session
    life: Life
    client: str = ""
    """Who made it; empty: nobody knows."""
    expiring: bool = False

    @property
    def ended(self) -> bool:
        return self.session.state in ("finished", "failed")


class Sessions:
    """Started and stopped with the service. `conduct` makes a session of its files."""

    def __init__(self, store: Store, conduct: Callable[[Stored], Session], limits: Limits) -> None:
        self._store = store
        self._conduct = conduct
        self._limits = limits
        self._entries: dict[str, _Entry] = {}
        self._creating: Counter[str] = Counter()
        self._stopping = False
        self._changed = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on with what an earlier service left."""
        for stored in await asyncio.to_thread(self._store.recover):
            try:
                await self._go_on(stored)
            except Exception:
                # The last wall: one session that cannot be read keeps no service from starting. Its files stay.
                log.exception("dictation %s cannot go on", stored.spec.id)
                self._entries.pop(stored.spec.id, None)
        self._owner = asyncio.create_task(self._tend(), name="dictations")

    async def _go_on(self, stored: Stored) -> None:
        entry = self._adopt(stored)
        entry.life.resume(ended=entry.ended)
        if entry.session.last_event == 0:
            await entry.session.begin(self._begun(entry, None))
        entry.session.start()
        log.info("goes on with dictation %s (%s)", stored.spec.id, entry.session.state)

    async def stop(self, grace: float) -> None:
        """No session ends, but the service: who waits for one hears ShuttingDown. Idempotent."""
        self._stopping = True
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])
        entries = list(self._entries.values())
        try:
            async with asyncio.timeout(grace):
                await asyncio.gather(*(entry.session.stop() for entry in entries))
        except TimeoutError:
            log.warning("some dictations did not stop in time; the next service goes on from their files")
        await asyncio.to_thread(_mark, entries)

    async def create(
        self, request: SessionRequest, model: str, vocabulary: VocabularyReport | None, client: str = ""
    ) -> dict[str, Any]:
        """A new session as its client is told of it. Raises TooManySessions, DiskFull and ShuttingDown."""
        open_ones = Counter(entry.client for entry in self._entries.values() if not entry.ended) + self._creating
        if open_ones.total() >= self._limits.most:
            raise _too_many("", self._limits.most)
        if client and open_ones[client] >= self._limits.most_of_one:
            raise _too_many(" of this client", self._limits.most_of_one)
        self._creating[client] += 1
        return await to_the_end(self._create(request, model, vocabulary, client))

    async def _create(
        self, request: SessionRequest, model: str, vocabulary: VocabularyReport | None, client: str
    ) -> dict[str, Any]:
        spec = request.spec(f"ses_{secrets.token_hex(12)}", int(time.time()), model)
        try:
            stored = await asyncio.to_thread(self._store.create, spec)
        finally:
            self._creating[client] -= 1
        entry = self._adopt(stored)
        entry.client = client
        begun = self._begun(entry, vocabulary)
        try:
            if self._stopping:
                raise ShuttingDown("the server is shutting down")
            await entry.session.begin(begun)
        except Failure:
            await self._remove(entry)
            raise
        entry.session.start()
        self._changed.set()
        return begun

    def session(self, id: str) -> Session:
        """Raises UnknownSession."""
        return self._entry(id).session

    def view(self, id: str) -> View:
        """Raises UnknownSession."""
        return self._view(self._entry(id))

    def views(self) -> list[View]:
        """Of all sessions, the newest first."""
        return [self._view(entry) for entry in reversed(self._entries.values())]

    async def add(self, id: str, seq: int | None, chunk: Chunk) -> Accepted:
        """As Session.add, and the session is not idle. Raises UnknownSession too."""
        entry = self._entry(id)
        accepted = await entry.session.add(seq, chunk)
        if not entry.ended:
            entry.life.restart(ended=False)
            if entry.life.stale:
                await asyncio.to_thread(entry.life.mark)
        return accepted

    async def finish(self, id: str) -> Transcript:
        """As Session.finish. Raises UnknownSession too."""
        entry = self._entry(id)
        transcript = await entry.session.finish()
        self._settle(entry)
        return transcript

    async def remove(self, id: str) -> None:
        """End it whatever it is at, and leave nothing of it. Raises UnknownSession."""
        await to_the_end(self._remove(self._entry(id)))

    def counts(self) -> dict[str, int]:
        """Sessions by state."""
        found = Counter(entry.session.state for entry in self._entries.values())
        return {state: found[state] for state in ("open", "finishing", "finished", "failed")}

    def usage(self) -> int:
        """Bytes on disk. Blocks for a moment."""
        return self._store.usage()

    def _entry(self, id: str) -> _Entry:
        if (entry := self._entries.get(id)) is None:
            raise UnknownSession("there is no such session; it was deleted, or kept for as long as it should be")
        return entry

    def _adopt(self, stored: Stored) -> _Entry:
        entry = _Entry(stored, self._conduct(stored), Life(stored.folder))
        self._entries[stored.spec.id] = entry
        return entry

    def _view(self, entry: _Entry) -> View:
        session = entry.session
        return View(
            id=session.spec.id,
            model=session.model,
            state=session.state,
            created=session.spec.created,
            expires_at=math.ceil(time.time() + max(0.0, self._left(entry))),
            samples=session.samples,
            duration=session.duration,
            text=session.text,
        )

    def _begun(self, entry: _Entry, vocabulary: VocabularyReport | None) -> dict[str, Any]:
        view = self._view(entry)
        return {
            "id": view.id,
            "model": view.model,
            "state": view.state,
            "expires_at": view.expires_at,
            "vocabulary": None if vocabulary is None else msgspec.structs.asdict(vocabulary),
        }

    def _left(self, entry: _Entry) -> float:
        """Seconds until its time is over. One that is finishing is kept as if it had finished just now."""
        self._settle(entry)
        if entry.session.state == "finishing":
            return self._limits.keep_s
        return (self._limits.keep_s if entry.ended else self._limits.idle_s) - entry.life.age

    def _settle(self, entry: _Entry) -> None:
        """The second part of a session's life begins when it is first seen to have ended."""
        if entry.ended and not entry.life.ended:
            entry.life.restart(ended=True)
            self._changed.set()

    async def _tend(self) -> None:
        """Finish what has had no audio for too long, remove what was kept long enough, note how old the rest is."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                entries = [entry for entry in self._entries.values() if not entry.expiring]
                for entry in entries:
                    if self._left(entry) <= 0:
                        entry.expiring = True
                        group.create_task(self._expire(entry), name=f"end of {entry.session.spec.id}")
                await asyncio.to_thread(_mark, entries)
                rest = min((self._left(entry) for entry in entries if not entry.expiring), default=MARK_S)
                try:
                    async with asyncio.timeout(min(max(rest, 0.0), MARK_S)):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _expire(self, entry: _Entry) -> None:
        log.info("the time of dictation %s is over (%s)", entry.session.spec.id, entry.session.state)
        try:
            if entry.ended:
                await to_the_end(self._remove(entry, "expired"))
            else:
                await entry.session.finish("expired")
        except Failure as failure:
            # It goes on finishing by itself, or, if it could not even begin to, gets as much time again.
            log.warning("dictation %s cannot be finished now: %s", entry.session.spec.id, failure.message)
            entry.life.restart(ended=entry.ended)
        except Exception:
            # The last wall: a bug in here must not keep other sessions from ending.
            log.exception("dictation %s cannot be ended", entry.session.spec.id)
            entry.life.restart(ended=entry.ended)
        finally:
            entry.expiring = False
            self._changed.set()

    async def _remove(self, entry: _Entry, reason: Reason = "deleted") -> None:
        self._entries.pop(entry.session.spec.id, None)
        await entry.session.close(reason)
        await asyncio.to_thread(entry.stored.remove)


def _too_many(whose: str, most: int) -> TooManySessions:
    return TooManySessions(f"{most} sessions{whose} are open already, and no more are allowed; finish or delete one")


def _mark(entries: list[_Entry]) -> None:
    for entry in entries:
        if entry.life.stale:
            entry.life.mark()
