"""`starling serve`: opens the socket, runs the app under Hypercorn and says on stdout how far it is.

Knows signals, Hypercorn and the order of start and end; what is served is service/app.py's.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import logging
import os
import resource
import signal
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service import logs
from service.cli import keys, private
from service.cli.listening import BACKLOG, Listening, opened
from service.cli.ready_file import ReadyFile
from service.cli.refusal import CannotServe
from service.cli.say import say
from service.config import Config

if TYPE_CHECKING:
    from hypercorn.config import Config as Hypercorn

SHUTDOWN_S = 15.0
"""What ending may take beyond the two graces (connections, then workers) before it is cut short."""
CLOSING_S = 2.0
"""What requests may take to end once their jobs have failed, the second half once they are told that their client
left."""
DESCRIPTORS = 8192
"""Open files and connections, where the system allows them: several for each request that --max-requests lets in."""
KEEP_ALIVE_S = 75.0
"""Longer than clients keep idle connections (httpx: 5 s), so that none is closed just as a request is sent on it."""


def run(config: Config) -> int:
    """Serve until a signal (or the end of standard input). The exit status: 1 when it could not."""
    _allow_descriptors()
    logs.to_stderr(config.log_level, config.log_format)
    with ExitStack() as ending:
        try:
            config, made = keys.settled(config)
            _check_told(config, made)
            private.make(Path(config.data_dir))
            ready = ReadyFile(config.ready_file)
            listening = opened(config)
            ending.callback(listening.close)
            # Clients that connect from now on wait in the socket's queue while the rest is imported.
            ready.write(listening, made)
            ending.callback(ready.remove)
        except CannotServe as error:
            print(f"starling: {error}", file=sys.stderr)
            return 1
        keys.hide(listening.where)
        say(f"Starling {importlib.metadata.version('starling')} on {listening.where} (Ctrl-C stops it)")
        if made and not config.ready_file:
            say(f"API key: {made}")
        return asyncio.run(_serve(config, listening, ending))


def _allow_descriptors() -> None:
    """Each client and each upload needs one, and macOS begins with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_told(config: Config, made: str | None) -> None:
    """Who is to read the key, and whose end is to be waited for? Raises CannotServe where there is nobody."""
    if made and not (config.ready_file or sys.stdout.isatty()):
        raise CannotServe(
            "--api-key generate needs --ready-file where standard output is no terminal: a key is written into no log"
        )
    if config.exit_with_parent:
        try:
            kind = os.fstat(0).st_mode
        except OSError:
            kind = 0
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)):
            raise CannotServe("--exit-with-parent needs a pipe as standard input, whose other end the parent holds")


async def _serve(config: Config, listening: Listening, ending: ExitStack) -> int:
    stop = asyncio.Event()
    _on_signals(stop, ending)
    from hypercorn.asyncio import serve

    from service.app import create
    from service.cli.announce import announce, curl
    from service.cli.http1 import refuse_http2
    from service.closing import Closing

    refuse_http2()
    app, over = create(config), asyncio.Event()
    command = curl(listening.url, listening.uds, keyed=bool(config.api_key))
    if config.exit_with_parent:
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
                announcing = group.create_task(announce(app.state.house.workers.resident, command))
                gc.freeze()  # What is there by now stays: looking through it again and again costs 50 ms each time.
                served: Any = Closing(app, over)  # Starlette's and Hypercorn's words for the same ASGI types differ.
                await serve(served, _hypercorn(config, listening), shutdown_trigger=stopped, mode="asgi")
                announcing.cancel()
    except TimeoutError:
        logging.getLogger("starling").error("some requests did not end in time and were cut off")
        return 1
    return 0


def _hypercorn(config: Config, listening: Listening) -> Hypercorn:
    from hypercorn.config import Config as Hypercorn

    settings = Hypercorn()
    settings.bind = [f"fd://{listening.detach()}"]
    settings.backlog = BACKLOG
    settings.accesslog = None
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.include_server_header = False
    settings.graceful_timeout = config.grace + CLOSING_S
    settings.keep_alive_timeout = KEEP_ALIVE_S
    return settings


def _on_signals(stop: asyncio.Event, ending: ExitStack) -> None:
    def asked() -> None:
        if stop.is_set():
            ending.close()
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
