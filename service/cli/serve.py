"""`starling serve`: opens the socket, runs the app under Hypercorn and says on stdout how far it is.

Knows sockets, signals and words; what is served is service/app.py's.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.metadata
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli import address
from service.cli.say import say
from service.config import Config

if TYPE_CHECKING:
    from hypercorn.config import Config as Hypercorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHUTDOWN_S = 15.0
"""What ending may take beyond the two graces (connections, then workers) before it is cut short."""
CLOSING_S = 2.0
"""What requests may take to end once their jobs have failed, the second half once they are told that their client
left."""
KEEP_ALIVE_S = 75.0
"""Longer than clients keep idle connections (httpx: 5 s), so that none is closed just as a request is sent on it."""


class CannotServe(Exception):
    """Why nothing was started; the message says what to do."""


def run(config: Config, *, until_eof: bool) -> int:
    """Serve until a signal (or the end of standard input). The exit status: 1 when it could not."""
    _log_to_stderr(config.log_level)
    try:
        _make_private(Path(config.data_dir))
        listening = listen(config.host, config.port)
    except CannotServe as error:
        print(f"starling: {error}", file=sys.stderr)
        return 1
    # Clients that connect from now on wait in the socket's queue while the rest is imported.
    url = address.url(config.host, listening.getsockname()[1])
    say(f"Starling {importlib.metadata.version('starling')} on {url} (Ctrl-C stops it)")
    return asyncio.run(_serve(config, listening, url, until_eof=until_eof))


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
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise CannotServe(_refused(host, port, error)) from error
    return opened


def _refused(host: str, port: int, error: OSError) -> str:
    at = f"{host}:{port}"
    if isinstance(error, PermissionError):
        return f"{at} may not be opened by this user: choose a port over 1023 (--port)"
    if error.errno == errno.EADDRINUSE:
        who = address.who_answers(address.url(host, port))
        return f"{at} is in use by {who or 'another program'}: choose another port (--port 9000, or 0 for a free one)"
    return f"{at} cannot be opened: {error.strerror}"


def _make_private(folder: Path) -> None:
    """Recordings and transcripts pass through it, so a new one is for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(f"the data directory {folder} cannot be made ({error.strerror}): see --data-dir") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotServe(f"the data directory {folder} is not writable: see --data-dir")


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    # It would say its address again.
    logging.getLogger("hypercorn").setLevel(logging.WARNING)
    # It warns of every form that it refuses; so do we, to the client and in the request's line.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


async def _serve(config: Config, listening: socket.socket, url: str, *, until_eof: bool) -> int:
    stop = asyncio.Event()
    _on_signals(stop)
    from hypercorn.asyncio import serve

    from service.app import create
    from service.cli.announce import announce

    app, over = create(config), asyncio.Event()
    if until_eof:
        await _watch_stdin(stop)
    try:
        async with asyncio.timeout(None) as limit:

            async def stopped() -> None:
                await stop.wait()
                loop = asyncio.get_running_loop()
                # Before the connections, so that a stream whose job does not end in time is told so.
                group.create_task(app.state.house.stop(config.grace))
                loop.call_later(config.grace + CLOSING_S / 2, over.set)
                limit.reschedule(loop.time() + 2 * config.grace + SHUTDOWN_S)

            async with asyncio.TaskGroup() as group:
                announcing = group.create_task(announce(app.state.house.workers.resident, url))
                served: Any = Closing(app, over)  # Starlette's and Hypercorn's words for the same ASGI types differ.
                await serve(served, _hypercorn(config, listening), shutdown_trigger=stopped, mode="asgi")
                announcing.cancel()
    except TimeoutError:
        logging.getLogger("starling").error("some requests did not end in time and were cut off")
        return 1
    return 0


class Closing:
    """Wraps an app: once `over` is set, every request still running is told that its client left.

    Hypercorn waits for open connections before it ends the app, since Python 3.12 without a limit.
    """

    def __init__(self, app: ASGIApp, over: asyncio.Event) -> None:
        self._app = app
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        over = asyncio.ensure_future(self._over.wait())
        receiving: asyncio.Future[Message] | None = None

        async def unless_over() -> Message:
            nonlocal receiving
            # It outlives a caller that gives up: what it had received, a disconnect say, is there for the next one.
            receiving = receiving or asyncio.ensure_future(receive())
            await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return {"type": "http.disconnect"}
            message, receiving = receiving.result(), None
            return message

        try:
            await self._app(scope, unless_over, send)
        finally:
            over.cancel()
            if receiving is not None:
                receiving.cancel()


def _hypercorn(config: Config, listening: socket.socket) -> Hypercorn:
    from hypercorn.config import Config as Hypercorn

    settings = Hypercorn()
    settings.bind = [f"fd://{listening.detach()}"]
    settings.accesslog = None
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.include_server_header = False
    settings.graceful_timeout = config.grace + CLOSING_S
    settings.keep_alive_timeout = KEEP_ALIVE_S
    return settings


def _on_signals(stop: asyncio.Event) -> None:
    def asked() -> None:
        if stop.is_set():
            # The workers see their pipes end and go too.
            os._exit(130)
        stop.set()
        say("stopping; once more stops it at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked)


async def _watch_stdin(stop: asyncio.Event) -> None:
    class Ended(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            stop.set()

    await asyncio.get_running_loop().connect_read_pipe(Ended, sys.stdin)
