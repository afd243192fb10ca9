"""A scripted service on a real port, for commands that talk to one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config as Hypercorn

from service.cli import address
from service.cli.listening import listen
from tests.scripted import Scripted, scripted

Serve = Callable[..., tuple[str, Scripted]]


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The URL of `app` while the block runs."""
    listening = listen("127.0.0.1", 0)
    url = address.url("127.0.0.1", listening.getsockname()[1])
    settings = Hypercorn()
    settings.bind = [f"fd://{listening.detach()}"]
    settings.errorlog = None
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(app, settings, shutdown_trigger=stop.wait)))
    thread.start()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serve]:
    """Called with what `scripted` takes: the URL and the parts behind it."""
    with ExitStack() as stack:

        def start(**options: Any) -> tuple[str, Scripted]:
            parts = stack.enter_context(scripted(tmp_path / "data", **options))
            return stack.enter_context(served(parts.app)), parts

        yield start
