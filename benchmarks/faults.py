"""What can befall a worker process from outside: it is killed, stopped, starved of memory, made to babble.

Knows processes and their descriptors; knows nothing of what they do. All but the first need Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

_PIDFD_GETFD = 438
"""The system call's number, the same on all 64-bit architectures; Python has no function for it."""

Fault = Callable[[psutil.Process], None]


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def stop(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)


def starve(process: psutil.Process) -> None:
    """No address space beyond what it has: the next large allocation fails."""
    import resource

    _, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (process.memory_info().vms, hard))


def chatter(process: psutil.Process) -> None:
    """A library prints what it likes: harmless."""
    _write(process, 1, b"Loading weights: 100%\n" * 200 + b"no line's end, and \xff\xfe no text")


def garble(process: psutil.Process) -> None:
    """Something writes to the pipe that frames go through."""
    _write(process, _pipe(process), b"\xff" * 64)


FAULTS: dict[str, Fault] = {"kill": kill, "stop": stop, "starve": starve, "chatter": chatter, "garble": garble}
HARMLESS = frozenset(("chatter",))


def possible() -> list[str]:
    """Those that work here."""
    if sys.platform != "linux":
        return ["kill", "stop"]
    try:
        os.close(_taken(os.getpid(), 1))
    except OSError:
        return ["kill", "stop", "starve"]
    return list(FAULTS)


def _pipe(process: psutil.Process) -> int:
    """The one socket that is not what it prints to."""
    folder = Path(f"/proc/{process.pid}/fd")
    names = {int(each.name): str(each.readlink()) for each in folder.iterdir()}
    found = [number for number, name in names.items() if name.startswith("socket:") and name != names[1]]
    if not found:
        raise ProcessLookupError(f"process {process.pid} has no pipe")
    return found[0]


def _write(process: psutil.Process, descriptor: int, data: bytes) -> None:
    taken = _taken(process.pid, descriptor)
    try:
        os.write(taken, data)
    finally:
        os.close(taken)


def _taken(pid: int, descriptor: int) -> int:
    """Another process's descriptor as one of ours. Raises OSError where that is not allowed, or it is gone."""
    if sys.platform != "linux":
        raise NotImplementedError("only Linux lends descriptors")
    reference = os.pidfd_open(pid)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        found: int = system.syscall(_PIDFD_GETFD, reference, descriptor, 0)
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found
    finally:
        os.close(reference)
