"""One worker process: its birth, its two sockets, its log and its end. Knows frames; knows no queue and no restart."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

import protocol
from protocol.events import FromWorker
from protocol.settings import Settings
from protocol.wire import Codec, frame

MAX_LOG_LINE = 4096
"""Bytes. A longer line of a worker's becomes several in the log."""

_LOG_CHUNK = 64 << 10


class Process:
    """A worker process that runs or ran. Made by `spawned`."""

    def __init__(self, child: asyncio.subprocess.Process, link: Stream) -> None:
        self._child = child
        self._reader, self._writer = link
        self._codec = Codec[FromWorker](FromWorker)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def status(self) -> int | None:
        """Its exit status as subprocess words it: -9 for SIGKILL. None while it runs."""
        return self._child.returncode

    def send(self, job: int, message: msgspec.Struct) -> None:
        """Queue one frame. It does not wait: a process holds few jobs, and its reader thread always reads.

        Raises FrameError when the message is too large for one. To a process that has died it does nothing.
        """
        data = frame(job, message)
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    async def read(self) -> tuple[int, FromWorker] | None:
        """The next frame; None when the process has died or hung up. Raises FrameError for anything else."""
        return await self._codec.read_async(self._reader)

    def kill(self) -> None:
        """End it now, and what it started. Its status comes later, from whoever waits for it.

        Not by `Process.kill`: that one polls first, and would take a dead child's status from the watcher.
        """
        if self._child.returncode is None:
            # PermissionError: macOS says that of a group whose only member is dead.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    async def end(self, patience: float) -> None:
        """Close its pipe, give it `patience` seconds to leave by itself, kill it, reap it."""
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()
        try:
            async with asyncio.timeout(patience):
                await self._child.wait()
        except TimeoutError:
            self.kill()
            await self._child.wait()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def spawned(
    command: Sequence[str], settings: Settings, log: logging.Logger, patience: float
) -> AsyncIterator[Process]:
    """A process that was told `settings`; at the end of the context it is gone and reaped.

    `command` gets one more argument, the number of its socket. What it prints goes to `log`.
    Raises OSError when it cannot be started.
    """
    link, link_end = await _socket()
    with link_end:
        try:
            printed, printed_end = await _socket()
        except BaseException:
            link[1].transport.abort()
            raise
        with printed_end:
            try:
                child = await asyncio.create_subprocess_exec(
                    *command,
                    str(link_end.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=printed_end.fileno(),
                    stderr=printed_end.fileno(),
                    pass_fds=(link_end.fileno(),),
                    start_new_session=True,
                    env=environment(os.environ),
                )
            except BaseException:
                link[1].transport.abort()
                printed[1].transport.abort()
                raise
    process = Process(child, link)
    following = asyncio.create_task(_follow(printed[0], log))
    try:
        process.send(0, settings)
        yield process
    finally:
        ending = asyncio.create_task(_bury(process, following, printed[1], patience))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            # The pool stops while this process dies: it is reaped all the same, which takes no longer than `patience`.
            await asyncio.wait([ending])
            raise


async def _bury(process: Process, following: asyncio.Task[None], log: asyncio.StreamWriter, patience: float) -> None:
    """End the process and, when what it printed has been read, its log."""
    await process.end(patience)
    # A child of its own may hold the other end for longer.
    await asyncio.wait([following], timeout=patience)
    following.cancel()
    log.transport.abort()
    with suppress(OSError):
        await log.wait_closed()


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited`, so that the process finds these very packages, wherever it is started."""
    root = str(Path(protocol.__file__).parents[1])
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, (root, inherited.get("PYTHONPATH"))))}


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone. On macOS this runs `ps`, for some milliseconds."""
    try:
        if sys.platform == "linux":
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
        return int(listed.stdout) << 10
    except (OSError, IndexError, ValueError, subprocess.CalledProcessError):
        return 0


async def _socket() -> tuple[Stream, socket.socket]:
    """Our end as streams, and the worker's end. Neither is inheritable by itself."""
    ours, theirs = socket.socketpair()
    try:
        return await asyncio.open_connection(sock=ours), theirs
    except BaseException:
        ours.close()
        theirs.close()
        raise


async def _follow(printed: asyncio.StreamReader, log: logging.Logger) -> None:
    """Log what comes, a line at a time, until nothing can come any more."""
    rest = b""
    with suppress(ConnectionError):
        while chunk := await printed.read(_LOG_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _log(line, log)
            while len(rest) > MAX_LOG_LINE:
                _log(rest[:MAX_LOG_LINE], log)
                rest = rest[MAX_LOG_LINE:]
    _log(rest, log)


def _log(line: bytes, log: logging.Logger) -> None:
    for start in range(0, len(line), MAX_LOG_LINE):
        if text := line[start : start + MAX_LOG_LINE].decode(errors="replace").rstrip():
            log.info("%s", text)
