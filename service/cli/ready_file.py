"""The file that tells a parent process where its service listens. Written at once and whole; private.

{"url": "http://127.0.0.1:49152", "pid": 4242, "api_key": "sk-…"}    api_key: only one that was made
{"url": "http+unix://%2Ftmp%2Fs.sock", "uds": "/tmp/s.sock", "pid": 4242}
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

import msgspec

from service.cli.listening import Listening
from service.cli.refusal import CannotServe


class ReadyFile:
    """One at `path`, or none where that is empty. What an earlier service wrote is taken away at once."""

    def __init__(self, path: str) -> None:
        """Raises CannotServe."""
        self._path = Path(path) if path else None
        self._written = False
        try:
            if self._path:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise _cannot(path, error) from error

    def write(self, listening: Listening, api_key: str | None) -> None:
        """Who sees it, sees all of it. Raises CannotServe."""
        if self._path is None:
            return
        told = {"url": listening.url, "pid": os.getpid()}
        told |= {"uds": listening.uds} if listening.uds else {}
        told |= {"api_key": api_key} if api_key else {}
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with FileIO(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(msgspec.json.encode(told) + b"\n")
            part.replace(self._path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _cannot(str(self._path), error) from error
        self._written = True

    def remove(self) -> None:
        """It is no longer true. Idempotent."""
        if self._path and self._written:
            self._path.unlink(missing_ok=True)
        self._written = False


def _cannot(path: str, error: OSError) -> CannotServe:
    return CannotServe(f"--ready-file {path} cannot be written: {error.strerror}")
