"""Where a service listens: a TCP address or a Unix socket, opened before anything else is done, or refused.

Knows sockets and words; knows no HTTP.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
import sys
from pathlib import Path
from urllib.parse import quote

from service.cli import address
from service.cli.refusal import CannotServe
from service.config import Config

BACKLOG = 1024
"""Connections that wait to be accepted, as far as the system allows: a crowd that comes at once is no reason to wait
for a lost SYN to be sent again."""

LONGEST_PATH = 103 if sys.platform == "darwin" else 107
"""Bytes of a Unix socket's path (sun_path, less the zero at its end)."""


class Listening:
    """An open socket and how clients find it. `close` takes a Unix socket's file away."""

    def __init__(self, opened: socket.socket, url: str, uds: str = "") -> None:
        self.url = url
        self.uds = uds
        """The path of a Unix socket; empty: it is TCP."""
        self.fd = opened.fileno()
        self._socket = opened
        self._made = _identity(uds)

    @property
    def where(self) -> str:
        """For people."""
        return self.uds or self.url

    def detach(self) -> int:
        """The descriptor, which is the caller's from here on."""
        return self._socket.detach()

    def close(self) -> None:
        """Remove what stands in the file system, if it is still this socket's. Idempotent."""
        self._socket.close()
        if self.uds and self._made is not None and _identity(self.uds) == self._made:
            Path(self.uds).unlink(missing_ok=True)
        self._made = None


def opened(config: Config) -> Listening:
    """What the settings ask for. Raises CannotServe."""
    if config.uds:
        return Listening(listen_unix(config.uds), f"http+unix://{quote(config.uds, safe='')}", config.uds)
    listening = listen(config.host, config.port)
    try:
        check_reach(listening, config)
    except CannotServe:
        listening.close()
        raise
    return Listening(listening, address.url(config.host, listening.getsockname()[1]))


def check_reach(listening: socket.socket, config: Config) -> None:
    """A service that other machines reach needs a key, or to be told that it needs none. Raises CannotServe."""
    where = str(listening.getsockname()[0]).partition("%")[0]
    if ipaddress.ip_address(where).is_loopback or config.api_key or config.insecure:
        return
    raise CannotServe(
        f"{config.host or where} can be reached from other machines, and there is no key to keep them out: set "
        "--api-key-file (or --api-key generate), listen on 127.0.0.1, or say --insecure"
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises CannotServe."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotServe(f"{host!r} is no address of this machine ({error.strerror}): see --host") from error
    # A name may mean an IPv6 and an IPv4 address; clients of "localhost" find the latter everywhere.
    family, kind, protocol, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise CannotServe(_refused(host, port, error)) from error
    return opened


def listen_unix(path: str) -> socket.socket:
    """A listening socket whose file only its owner may use. One that nobody serves is replaced. Raises CannotServe."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotServe(f"--uds {path}: the path of a socket has at most {LONGEST_PATH} bytes")
    _make_way(path)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The file is private from its first moment: a mode that is set afterwards comes too late.
    mask = os.umask(0o177)
    try:
        opened.bind(path)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise CannotServe(f"--uds {path} cannot be opened: {error.strerror}") from error
    finally:
        os.umask(mask)
    return opened


def _make_way(path: str) -> None:
    """Remove the socket of a service that is gone. Raises CannotServe for anything else that stands there."""
    try:
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise CannotServe(f"--uds {path}: something other than a socket is there")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotServe(f"--uds {path} cannot be opened: {error.strerror}") from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(address.PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:
            raise CannotServe(f"--uds {path} is not free: {error.strerror or 'its server is busy'}") from error
    raise CannotServe(f"--uds {path} is in use by another program: choose another path")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file a path names now; None when there is none."""
    try:
        found = Path(path).lstat() if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _refused(host: str, port: int, error: OSError) -> str:
    at = f"{host}:{port}"
    if isinstance(error, PermissionError):
        return f"{at} may not be opened by this user: choose a port over 1023 (--port)"
    if error.errno == errno.EADDRINUSE:
        who = address.who_answers(address.url(host, port))
        return f"{at} is in use by {who or 'another program'}: choose another port (--port 9000, or 0 for a free one)"
    return f"{at} cannot be opened: {error.strerror}"
