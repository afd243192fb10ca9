"""Files that only grow, by whole records: a record is there or it is not, whatever kills the service or fills the disk.

Knows bytes and their order; knows neither audio nor events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import zlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from struct import Struct
from typing import TypeVar

from service.disk import disk_full, private, sync

T = TypeVar("T")

DAMAGED = ".damaged"
"""Of a file's name, where it is kept as it was found."""

log = logging.getLogger("starling.dictation")


class GrowingFile:
    """The first `size` bytes count. What a failed write left after them is cut off before the next."""

    def __init__(self, path: Path, size: int) -> None:
        """The file exists; what it holds beyond `size` is what a service that died was about to write, and goes."""
        self.path = path
        self.size = size
        self._file: FileIO = private(path, os.O_WRONLY)
        self._torn = path.stat().st_size != size
        # Against `close` while another thread writes: the descriptor's number could be some other file by then.
        self._use = threading.Lock()
        self._cut()

    def append(self, data: bytes, *, safe: bool) -> None:
        """Write `data` at the end and, if `safe`, wait until it is on the disk.

        Raises DiskFull, or OSError for other reasons and when the file was closed; the file is then as before.
        """
        with self._use, disk_full():
            if self._file.closed:
                raise OSError(f"{self.path.name} was closed")
            self._cut()
            try:
                self._write(data)
                if safe:
                    sync(self._file.fileno())
            except OSError:
                self._torn = True
                # If it cannot be cut now, then before the next record or by the next service.
                with contextlib.suppress(OSError):
                    self._cut()
                raise
            self.size += len(data)

    def close(self) -> None:
        """Waits for a write that is under way. Idempotent."""
        with self._use:
            self._file.close()

    def _write(self, data: bytes) -> None:
        done = 0
        with memoryview(data) as view:
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], self.size + done)

    def _cut(self) -> None:
        if self._torn:
            os.ftruncate(self._file.fileno(), self.size)
            self._torn = False


FRAME = Struct("<II")
"""Before each record of a log: the length of its body, and the CRC-32 of the length and the body."""


class Log:
    """Records of any bytes, each with its length and checksum. Order is that of the calls."""

    def __init__(self, path: Path, mark: bytes) -> None:
        """Read what is there; the file begins with `mark`. Raises ValueError when it does not.

        At the first record that is none the file is cut. After a crash that is the last one, half written. If others
        follow it, the disk has lost something: then the file is kept as it was beside this one, and the log says so.
        """
        data = path.read_bytes()
        if not data.startswith(mark):
            raise ValueError(f"{path.name} does not begin as one")
        self.records: list[bytes] = []
        """Those that were there when it was opened."""
        at = len(mark)
        while at + FRAME.size <= len(data):
            length, checksum = FRAME.unpack_from(data, at)
            body = data[at + FRAME.size : at + FRAME.size + length]
            if len(body) < length or _checksum(body) != checksum:
                break
            self.records.append(body)
            at += FRAME.size + length
        if _holds_records(data, at + 1):
            kept = path.with_suffix(DAMAGED)
            _copy(data, kept)
            log.error(
                "%s is damaged at byte %d of %d: what was written after that is made again; it is kept in %s",
                path,
                at,
                len(data),
                kept.name,
            )
        elif at < len(data):
            log.info("%s ends with a record that was not finished: %d bytes are dropped", path, len(data) - at)
        self._file = GrowingFile(path, at)
        self._turn = asyncio.Lock()

    @property
    def size(self) -> int:
        """Bytes."""
        return self._file.size

    async def append(self, body: bytes, *, safe: bool) -> None:
        """As GrowingFile.append. A caller that is cancelled is so when it is known whether the record is there."""
        record = FRAME.pack(len(body), _checksum(body)) + body
        async with self._turn:
            if safe:
                await settled(lambda: self._file.append(record, safe=True))
            else:
                self._file.append(record, safe=False)

    def close(self) -> None:
        self._file.close()


def _holds_records(data: bytes, start: int) -> bool:
    """Whether a record lies anywhere from byte `start` on."""
    for at in range(start, len(data) - FRAME.size):
        length, checksum = FRAME.unpack_from(data, at)
        body = at + FRAME.size
        if 0 < length <= len(data) - body and _checksum(data[body : body + length]) == checksum:
            return True
    return False


def _copy(data: bytes, path: Path) -> None:
    with disk_full(), private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        sync(file.fileno())


def _checksum(body: bytes) -> int:
    # With the length, so that the zeros of a page that never came to the disk are no record.
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


async def settled(work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
    """Do `work` in a thread, and what follows from it here, also when the caller is cancelled meanwhile."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        result = future.result()
        if then is not None:
            then(result)
        return result
    finally:
        if cancelled is not None:
            raise cancelled
