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
from protocol import lines
from protocol.events import FromWorker
from protocol.settings import Settings
from protocol.wire import Codec, frame
from service import logs
from service.config import PREFIX

MAX_LOG_LINE = 4096
"""Bytes. A longer line of a worker's becomes several in the log."""

API_KEY = f"{PREFIX}API_KEY"

ASKED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
"""Nothing that a worker does sends it one of these."""
_LOG_CHUNK = 64 << 10


class Process:
    """A worker process that runs or ran. Made by `spawned`."""

    def __init__(self, child: asyncio.subprocess.Process, link: Stream) -> None:
        self._child = child
        self._reader, self._writer = link
        self._codec = Codec[FromWorker](FromWorker)
        self._killed = self._halted = False
        self._starved = _starved()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def status(self) -> int | None:
        """Its exit status as subprocess words it: -9 for SIGKILL. None while it runs."""
        return self._child.returncode

    @property
    def ended_from_outside(self) -> bool:
        """Somebody stopped it, or ended it, and no job of its did. False where that cannot be told: a system that is
        short of memory kills like a person, and only Linux counts how often it did."""
        status = self.status
        if self._halted:
            return True
        if self._killed or status is None:
            return False
        if status == -signal.SIGKILL:
            return self._starved is not None and self._starved == _starved()
        return -status in ASKED

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
            state = _state(self._child.pid)
            self._halted = self._halted or state in ("T", "t")
            # One that is dead already, and not reaped yet, is none that we kill.
            self._killed = self._killed or state not in ("Z", "X")
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
                    # A group, so that what it starts ends with it, and Ctrl-C is not its own. No session: Linux shares
                    # out time among sessions first, where a worker of many threads makes the front end wait.
                    process_group=0,
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
    """`inherited`, so that the process finds these very packages, wherever it is started; without the keys."""
    kept = {name: value for name, value in inherited.items() if name != API_KEY}
    root = str(Path(protocol.__file__).parents[1])
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (root, inherited.get("PYTHONPATH"))))}


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone. On macOS this runs `ps`, for some milliseconds."""
    try:
        if sys.platform == "linux":
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return int(_ps(pid, "rss")) << 10
    except (OSError, IndexError, ValueError, subprocess.CalledProcessError):
        return 0


def _state(pid: int) -> str:
    """A letter, as `ps` has it: T or t for a process that was stopped, which no job does to its own, Z or X for a dead
    one. Empty where nothing is known."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
        return _ps(pid, "state")[:1]
    except (OSError, IndexError, subprocess.CalledProcessError):
        return ""


def _ps(pid: int, column: str) -> str:
    """What `ps` lists of a process. Raises CalledProcessError when it is gone."""
    command = ("ps", "-o", f"{column}=", "-p", str(pid))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _starved() -> int | None:
    """How many processes the system has killed because it was short of memory; None where it does not say."""
    try:
        counted = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counted["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


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
        text = line[start : start + MAX_LOG_LINE].decode(errors="replace").rstrip()
        if said := lines.parse(text):
            log.log(said.level, "%s: %s", said.logger, said.message, extra=logs.about(said.requests))
        elif text:
            log.info("%s", text, extra=logs.about(()))
