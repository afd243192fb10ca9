"""The folders of live sessions: made, found again after a restart, removed. Knows files; knows no session's life.

<data_dir>/sessions/.lock       held while a service comes or makes a session
<data_dir>/sessions/<id>/       one session (0700); its `.lock` is held by the service that has it
    session.json                what was asked for; written once
    audio, <number>.file        the journal: what was sent
    <number>.gap                silence in place of chunks that the disk has lost
    story                       what became of it: records of the session's own (story.damaged: as found, see Log)
    pcm                         16 kHz mono s16le, made from the journal and made again after a restart

A folder comes and goes by one rename: `.new-…` and `.gone-…` are no sessions and are swept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from protocol.errors import DiskFull, ShuttingDown, UnknownSession
from protocol.jobs import Run
from service.dictation import frames
from service.dictation.chunk import Chunk
from service.dictation.growing import Log, settled
from service.dictation.journal import Journal, Received, Records
from service.dictation.spec import Spec
from service.disk import LOCK, disk_full, locked, private, sync, sync_folder

log = logging.getLogger(__name__)

NEW, GONE = ".new-", ".gone-"
STORY_MARK = b"starling story 1"

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SAMPLE_BYTES = 2


class Stored:
    """One session's files. Its owner appends; a chunk or record is safe when the call returns."""

    def __init__(self, folder: Path, spec: Spec, held: ExitStack, room: Callable[[int], None]) -> None:
        """The folder is whole, and `held` lets go of it. `room(n)` raises DiskFull when n more bytes are too many.

        Raises ValueError for files that are none of ours, OSError.
        """
        self.spec = spec
        self.folder = folder
        self._room = room
        self._held = held
        self.removed = False
        self._closed = False
        with ExitStack() as opened:
            self._journal = Journal(folder)
            opened.callback(self._journal.close)
            self._story = Log(folder / "story", STORY_MARK)
            opened.callback(self._story.close)
            # A new file: a worker of a service that died may still write to the old one.
            self.pcm.unlink(missing_ok=True)
            with disk_full():
                private(self.pcm, _MAKE).close()
            known = self._journal.files()
            for path in (*folder.glob("*.file"), *folder.glob("received-*")):
                if path not in known:
                    path.unlink()
            opened.pop_all()

    @property
    def pcm(self) -> Path:
        """Empty when the session is made or found again; a worker that opens it without making it may write there."""
        return self.folder / "pcm"

    @property
    def records(self) -> Records:
        return self._journal.records

    @property
    def samples(self) -> int:
        """At 16 kHz, as announced for the last chunk."""
        return self._journal.records.samples

    @property
    def story(self) -> list[bytes]:
        """The records that were there when the session was found again."""
        return self._story.records

    @property
    def size(self) -> int:
        """Bytes of the session's files, those of `pcm` that are still to be written too."""
        if self.removed:
            return 0
        return self._journal.size + self._story.size + self.samples * _SAMPLE_BYTES

    def runs(self, first: int = 0) -> tuple[Run, ...]:
        return self._journal.runs(first)

    def after(self, chunk: Chunk) -> int:
        return self._journal.after(chunk)

    async def append(self, chunk: Chunk | Received, seq: int | None = None, samples: int | None = None) -> None:
        """As Journal.append. Raises UnknownSession when the session was removed, DiskFull for more than is allowed."""
        with self._while_it_lives():
            self._room(len(chunk.data) if isinstance(chunk, Chunk) else chunk.bytes)
            await self._journal.append(chunk, seq, samples)

    async def tell(self, record: bytes, *, sync: bool) -> None:
        """Add to the story; with `sync` the record survives a power cut, without it a kill of the service.

        Raises DiskFull, or OSError for other reasons, and then nothing of it stays; UnknownSession as `append`.
        """
        with self._while_it_lives():
            await self._story.append(record, safe=sync)

    @asynccontextmanager
    async def received(self, chunk: Chunk) -> AsyncIterator[Received]:
        """An encoded chunk as a file in the folder, safe but no part of the session before it is appended.

        Raises DiskFull, UnknownSession.
        """
        name = f"received-{secrets.token_hex(8)}"
        path, target = self.folder / name, self.folder / f"{name}.pcm"
        try:
            with self._while_it_lives():
                self._room(len(chunk.data) if chunk.path is None else chunk.path.stat().st_size)
                yield Received(path, target, await settled(lambda: _receive(chunk, path, target)))
        finally:
            path.unlink(missing_ok=True)
            target.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files; they stay. Waits for a write that is under way. Idempotent."""
        self._closed = True
        self._journal.close()
        self._story.close()
        self._held.close()

    def remove(self) -> None:
        """Remove every file. Idempotent. Blocks for as long as the disk takes; a write under way ends first."""
        if self.removed:
            return
        self.removed = True
        self._journal.close()
        self._story.close()
        gone = self.folder.with_name(f"{GONE}{self.folder.name}-{secrets.token_hex(4)}")
        with self._held, contextlib.suppress(FileNotFoundError):
            self.folder.rename(gone)
            sync_folder(gone.parent)
            _sweep(gone)

    @contextlib.contextmanager
    def _while_it_lives(self) -> Iterator[None]:
        """Raises UnknownSession when the session was removed, before or meanwhile, ShuttingDown when it was let go."""
        try:
            if self.removed or self._closed:
                raise OSError("the session's files are closed")
            yield
        except OSError as error:
            if self.removed:
                raise UnknownSession("the session was removed") from error
            if self._closed:
                raise ShuttingDown("the service is shutting down") from error
            raise


class Store:
    """All sessions of this service. A context manager: entering makes the folder, leaving lets go of the sessions."""

    def __init__(self, data_dir: str | Path, max_bytes: int | None = None) -> None:
        """`max_bytes`: that all sessions of this service may take together."""
        self._home = Path(data_dir) / "sessions"
        self._max_bytes = max_bytes
        self._sessions: dict[str, Stored] = {}

    def __enter__(self) -> Self:
        with disk_full():
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def recover(self) -> list[Stored]:
        """The sessions that no living service has, oldest first, and a broom for what is none. Call it once, first."""
        with locked(self._home / LOCK):
            held = [(folder, lock) for folder in sorted(self._home.iterdir()) if (lock := _taken(folder))]
        for folder, lock in held:
            if folder.name.startswith((NEW, GONE)):
                with lock:
                    _sweep(folder)
                    log.info("removed what was left of a session: %s", folder.name)
                continue
            try:
                spec = msgspec.json.decode((folder / "session.json").read_bytes(), type=Spec)
                self._sessions[folder.name] = Stored(folder, spec, lock, self._room)
            except (OSError, ValueError, DiskFull) as error:
                lock.close()
                log.error("a session cannot be read and is left as it is: %s: %s", folder, error)
        return sorted(self._sessions.values(), key=lambda session: session.spec.created)

    def create(self, spec: Spec) -> Stored:
        """A new session's folder; `spec.id` is its name. Raises DiskFull."""
        for name, stored in list(self._sessions.items()):
            if stored.removed:
                self._sessions.pop(name, None)
        self._room(0)
        folder, new = self._home / spec.id, self._home / f"{NEW}{spec.id}"
        with disk_full(), ExitStack() as undo:
            # Without it a service that comes could sweep the folder between its making and its locking.
            with locked(self._home / LOCK):
                new.mkdir(mode=0o700)
                undo.callback(shutil.rmtree, new, ignore_errors=True)
                lock = undo.enter_context(ExitStack())
                lock.enter_context(locked(new / LOCK))
            _write(new / "session.json", msgspec.json.encode(spec))
            _write(new / "audio", frames.MARK)
            _write(new / "story", STORY_MARK)
            sync_folder(new)
            new.rename(folder)
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            sync_folder(self._home)
            session = Stored(folder, spec, lock, self._room)
            undo.pop_all()
        self._sessions[spec.id] = session
        return session

    def usage(self) -> int:
        """Bytes allocated on disk for all sessions; walks the folders."""
        return sum(_allocated(session.folder) for session in list(self._sessions.values()))

    def _room(self, more: int) -> None:
        if self._max_bytes is None:
            return
        if sum(session.size for session in list(self._sessions.values())) + more > self._max_bytes:
            raise DiskFull(f"the dictations take all of the {self._max_bytes} bytes that are allowed; remove some")


def _taken(folder: Path) -> ExitStack | None:
    """The lock of a session's folder or of what is left of one; None if a living service has it, or if it is none."""
    ours = folder.name.startswith((NEW, GONE)) or (folder / "session.json").exists()
    if not ours or folder.is_symlink() or not folder.is_dir():
        return None
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK, wait=False))
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                log.warning("a session's folder cannot be locked: %s: %s", folder, error)
            return None
        return stack.pop_all()
    return None


def _sweep(folder: Path) -> None:
    """Remove a folder that is no session. What cannot be removed now is left to the next service."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("what is left of a session cannot be removed: %s: %s", folder, error)


def _write(path: Path, data: bytes) -> None:
    with private(path, _MAKE) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        sync(file.fileno())


def _receive(chunk: Chunk, path: Path, target: Path) -> int:
    """In a thread: the chunk's file at `path`, an empty one at `target`. Bytes of the former."""
    with disk_full():
        private(target, _MAKE).close()
        if chunk.path is None:
            _write(path, chunk.data)
        else:
            try:
                os.link(chunk.path, path)
            except OSError:
                # Not every file system knows links, and the spool may be on another.
                private(path, _MAKE).close()
                shutil.copyfile(chunk.path, path)
            with private(path, os.O_WRONLY) as file:
                sync(file.fileno())
        return path.stat().st_size


def _allocated(folder: Path) -> int:
    """Bytes on disk of the files in a folder that may be going away meanwhile."""
    found = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found += entry.stat(follow_symlinks=False).st_blocks * 512
    return found
