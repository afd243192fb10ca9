"""Files of this service's own: private ones, locked ones, ones that are safe on the disk, and a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from protocol.errors import DiskFull

LOCK = ".lock"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def private(path: Path, flags: int) -> FileIO:
    """Open for writing without a buffer, so that a full disk shows in `write` and not in `close`."""
    return FileIO(os.open(path, flags, 0o600), "wb")


@contextmanager
def disk_full() -> Iterator[None]:
    """Turns what the system says of a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull("the server's disk is full") from error


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold `path` as this process's. Raises BlockingIOError when another process does and `wait` is false.

    The lock ends with the process however it ends, and no child inherits it (Python opens files close-on-exec).
    """
    with private(path, os.O_WRONLY | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def sync(descriptor: int) -> None:
    """Wait until the file's bytes and its length are on the disk."""
    if sys.platform == "darwin":
        # There fsync leaves them in the drive's own cache, and fdatasync is not to be had.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
