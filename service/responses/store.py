"""Responses on disk, so that a conversation goes on after a restart: one SQLite file, bounded by bytes and by age.

Knows ids and JSON; knows no item's meaning. A conversation is a chain of responses, each of which has its own input
and output alone. What is used longest ago goes first, a turn never before the turns that follow it.

Every call opens the file for itself: there is nothing to close, and any thread may call.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protocol.errors import DiskFull, UnknownResponse
from service import disk

Item = dict[str, Any]
T = TypeVar("T")

FILE = "responses.sqlite3"
BUSY_S = 10.0
"""Seconds to wait for another process's write."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, previous TEXT, used REAL NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL,
    input BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_used ON responses (used);
CREATE TABLE IF NOT EXISTS items (id TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (id, response));
CREATE INDEX IF NOT EXISTS items_response ON items (response);
CREATE TRIGGER IF NOT EXISTS items_go AFTER DELETE ON responses BEGIN
    DELETE FROM items WHERE response = OLD.id;
END;
"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

log = logging.getLogger("starling.responses")


@dataclass(frozen=True)
class Stored:
    """One response. `body` is what the client got; `input` what it sent, as items with ids."""

    id: str
    previous: str | None
    body: dict[str, Any]
    input: tuple[Item, ...]


class ResponseStore:
    """Blocks on the disk: not to be called from the event loop."""

    def __init__(self, folder: Path, *, max_bytes: int, keep_s: float, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / FILE
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._turn = threading.Lock()

    def put(self, response: Stored, chain: Sequence[str] = ()) -> None:
        """Keep it; `chain` are the ids that it goes on from, which stay as long as it does. Raises DiskFull.

        One that is larger than all may be is not kept.
        """
        body, given = msgspec.json.encode(response.body), msgspec.json.encode(response.input)
        size, now = len(body) + len(given), self._clock()
        items = [(item["id"], response.id) for item in (*response.input, *response.body["output"])]

        def put(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)",
                (response.id, response.previous, now, size, body, given),
            )
            database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?)", items)
            database.executemany("UPDATE responses SET used = ? WHERE id = ?", [(now, id) for id in chain])
            self._evict(database, now)

        self._do(put)

    def get(self, id: str, *, param: str | None = None) -> Stored:
        """Raises UnknownResponse."""
        return self._do(lambda database: self._get(database, id, param))

    def chain(self, id: str) -> tuple[Stored, ...]:
        """The conversation up to this response, the first turn first. Raises UnknownResponse."""

        def chain(database: sqlite3.Connection) -> tuple[Stored, ...]:
            found: list[Stored] = []
            previous: str | None = id
            while previous is not None:
                found.append(self._get(database, previous, "previous_response_id"))
                previous = found[-1].previous
            return tuple(reversed(found))

        return self._do(chain)

    def item(self, id: str, *, param: str) -> Item:
        """An item of a response that is kept, by its own id. Raises UnknownResponse."""

        def stored(database: sqlite3.Connection) -> Stored:
            # Clients send what they were answered again, under its id: the first response is the one that made it.
            query = (
                "SELECT response FROM items JOIN responses ON responses.id = response "
                "WHERE items.id = ? AND used >= ? ORDER BY responses.rowid"
            )
            row = database.execute(query, (id, self._clock() - self._keep_s)).fetchone()
            if row is None:
                raise UnknownResponse(f"no response that is kept here has an item {id[:100]!r}", param=param)
            return self._get(database, row[0], param)

        found = self._do(stored)
        return next(item for item in (*found.input, *found.body["output"]) if item["id"] == id)

    def remove(self, id: str) -> None:
        """Raises UnknownResponse."""

        def remove(database: sqlite3.Connection) -> None:
            self._get(database, id, None)
            database.execute("DELETE FROM responses WHERE id = ?", (id,))
            database.execute("PRAGMA incremental_vacuum")

        self._do(remove)

    def _get(self, database: sqlite3.Connection, id: str, param: str | None) -> Stored:
        oldest = self._clock() - self._keep_s
        query = "SELECT previous, body, input FROM responses WHERE id = ? AND used >= ?"
        row = database.execute(query, (id, oldest)).fetchone()
        if row is None:
            raise UnknownResponse(
                f"there is no response {id[:100]!r} here: it was never stored, was deleted, or is gone with age",
                param=param,
            )
        previous, body, given = row
        try:
            return Stored(id, previous, msgspec.json.decode(body), tuple(msgspec.json.decode(given)))
        except msgspec.DecodeError as error:
            # What SQLite does not look at it does not find damaged.
            log.warning("the response %s is damaged", id)
            raise UnknownResponse(f"the response {id[:100]!r} is damaged", param=param) from error

    def _evict(self, database: sqlite3.Connection, now: float) -> None:
        database.execute("DELETE FROM responses WHERE used < ?", (now - self._keep_s,))
        (total,) = database.execute("SELECT COALESCE(SUM(size), 0) FROM responses").fetchone()
        if total <= self._max_bytes:
            return
        gone = []
        # Turns of one conversation were used at the same moment: the later one goes first.
        for id, size in database.execute("SELECT id, size FROM responses ORDER BY used, rowid DESC"):
            if total <= self._max_bytes:
                break
            total -= size
            gone.append((id,))
        database.executemany("DELETE FROM responses WHERE id = ?", gone)
        log.info("%d stored responses made room for others", len(gone))
        database.execute("PRAGMA incremental_vacuum")

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In a transaction, undone when something is raised. A file that is damaged, wherever that shows, is put aside,
        and the work is done with an empty one."""
        # One after the other, so that no file is put aside under somebody. Most of the time is the disk's anyway.
        with self._turn:
            try:
                return self._once(work)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._put_aside(error)
            return self._once(work)

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with closing(self._connect()) as database, database:
                return work(database)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise DiskFull("the server's disk is full: the response could not be stored") from error

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self._path.with_suffix(".damaged")
        log.warning("%s is damaged (%s): it is put aside as %s", self._path, error, aside.name)
        self._path.replace(aside)
        for journal in ("-wal", "-shm"):
            Path(f"{self._path}{journal}").unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Conversations are private, and SQLite gives its journals the file's own mode.
        with disk.disk_full():
            disk.private(self._path, os.O_WRONLY | os.O_CREAT).close()
        database = sqlite3.connect(self._path, timeout=BUSY_S)
        try:
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA secure_delete = ON")
            database.executescript(_SCHEMA)
        except sqlite3.Error:
            database.close()
            raise
        return database


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """The lowest byte says it; the others say where."""
    return error.sqlite_errorcode & 0xFF in _DAMAGED
