"""Uploads and PCM on disk: limits, removal, and what a service that died left behind. Knows no HTTP and no audio.

<data_dir>/spool/.lock            held while a service comes or sweeps
<data_dir>/spool/<instance>/      one service's files (0700); its `.lock` is held while that service lives
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from protocol.errors import PayloadTooLarge
from service.disk import LOCK, disk_full, locked, private

log = logging.getLogger(__name__)


class Usage(msgspec.Struct, frozen=True):
    """What the spool holds now. `bytes` are those allocated on disk."""

    files: int
    bytes: int


class SpoolFile:
    """One file of the spool, open for writing at its end.

    A write goes to the page cache (no fsync: nothing here outlives the service), so chunks of up to about
    1 MiB may be written from the event loop.
    """

    def __init__(self, path: Path, file: FileIO, limit: int | None, count: Callable[[int], None]) -> None:
        self.path = path
        self._count = count
        self.size = 0
        """Bytes written so far."""
        self._file = file
        self._limit = limit

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append `chunk`. Raises PayloadTooLarge before it writes past the limit, DiskFull when there is no room."""
        size = self.size + len(chunk)
        if self._limit is not None and size > self._limit:
            raise PayloadTooLarge(f"the upload is larger than the {self._limit} bytes that are allowed")
        rest = memoryview(chunk)
        while rest:
            with disk_full():
                written = self._file.write(rest)
            rest = rest[written:]
        self.size = size
        self._count(len(chunk))


class Spool:
    """This service's folder. A context manager: entering makes it, leaving removes it with all it holds.

    A file is removed soon after its context, by a thread: a file system that is writing lets that wait for 100 ms and
    more, and the event loop would wait with it.
    """

    def __init__(self, data_dir: str | Path) -> None:
        self._home = Path(data_dir) / "spool"
        self._instance = self._home / secrets.token_hex(8)
        self._open = ExitStack()
        self._removing = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self.received = 0
        """Bytes of all uploads so far."""

    @property
    def path(self) -> Path:
        return self._instance

    def __enter__(self) -> Self:
        """Raises DiskFull when the folder cannot be made for want of room, OSError for other reasons."""
        with disk_full(), ExitStack() as undo:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Without it a service that sweeps could remove a folder between its making and its locking.
            with locked(self._home / LOCK):
                _sweep(self._home)
                self._instance.mkdir(mode=0o700)
                undo.enter_context(locked(self._instance / LOCK))
                undo.callback(shutil.rmtree, self._instance, ignore_errors=True)
                undo.callback(self._removing.shutdown)
            self._open = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @contextmanager
    def upload(self, limit: int | None = None) -> Iterator[SpoolFile]:
        """An empty file for at most `limit` bytes of a client's, removed once the context has ended.

        Raises DiskFull when it cannot be made.
        """
        path = self._instance / f"{secrets.token_hex(8)}.upload"
        try:
            with disk_full():
                file = private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with file:
                yield SpoolFile(path, file, limit, self._received)
        finally:
            self._remove(path)

    @contextmanager
    def pcm(self) -> Iterator[Path]:
        """The path of an empty file for a media worker to fill with s16le, removed once the context has ended.

        It is there from the start, so that a worker that opens it without creating it cannot bring it back
        after its removal. Raises DiskFull when it cannot be made.
        """
        path = self._instance / f"{secrets.token_hex(8)}.pcm"
        try:
            with disk_full():
                private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL).close()
            yield path
        finally:
            self._remove(path)

    def _received(self, size: int) -> None:
        self.received += size

    def _remove(self, path: Path) -> None:
        self._removing.submit(_unlink, path)

    def usage(self) -> Usage:
        """Walks the folder: one stat for each request under way. Waits for what is being removed."""
        self._removing.submit(int).result()
        sizes = []
        with os.scandir(self._instance) as entries:
            for entry in entries:
                if entry.name != LOCK:
                    try:
                        sizes.append(entry.stat(follow_symlinks=False).st_blocks * 512)
                    except FileNotFoundError:
                        continue
        return Usage(files=len(sizes), bytes=sum(sizes))


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a file of the spool cannot be removed: %s: %s", path.name, error)


def _sweep(home: Path) -> None:
    """Remove the folders of services that are no more. The caller holds the lock of `home`."""
    for folder in home.iterdir():
        if not folder.is_dir() or folder.is_symlink():
            continue
        try:
            with locked(folder / LOCK, wait=False):
                shutil.rmtree(folder)
        except BlockingIOError:
            continue
        except OSError as error:
            log.warning("the spool of a service that is gone cannot be removed: %s: %s", folder, error)
            continue
        log.info("removed the spool of a service that is gone: %s", folder.name)
