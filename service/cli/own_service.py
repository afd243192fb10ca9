"""A service that a command starts for itself on a free port, and ends when it is done.

Knows how to run `starling serve`; asks nothing of it but whether it is ready.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import httpx
import msgspec

from service.config import PREFIX, Config, Setting, settings
from service.names import by_id

LOOK_S = 0.2
END_S = 30.0
"""What an idle service may take to end; nothing runs in it by then."""

OUTWARD = (
    *("host", "port", "uds", "api_key", "api_key_file", "insecure", "allowed_host", "cors_origin"),
    *("ready_file", "exit_with_parent"),
)
"""Settings of how a service meets the world; our own one meets nobody else."""


class Unavailable(Exception):
    """There is no service to work through; the message says why."""


@contextmanager
def started(config: Config, report: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """URL and key of a service with these settings, once it is ready. Raises Unavailable.

    It also ends when this process dies, because its standard input ends then. Nobody else can use it.
    """
    key = secrets.token_urlsafe(32)
    with tempfile.TemporaryFile("w+", errors="replace") as log, _process(config, log, key) as process:
        url = _address(process)
        if url is None:
            raise Unavailable(_last_words(process, log))
        wait_ready(url, report, key)
        yield url, key


@contextmanager
def _process(config: Config, log: TextIO, key: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # A session of its own: Ctrl-C reaches this process alone, which then ends the service in good order.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "service", "serve", *_flags(config)],
        env={**inherited, f"{PREFIX}API_KEY": key},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _flags(config: Config) -> list[str]:
    """The settings as flags: the environment and a --config file are in them already."""
    flags = []
    speech = {*by_id(config.whisper_model), *config.whisper_model}
    aliases = tuple(pair for pair in config.model_alias if pair.partition("=")[2].strip() in speech)
    # Whoever transcribes needs no other model.
    config = msgspec.structs.replace(config, llm_model=(), embedding_model=(), model_alias=aliases)
    for setting in settings().values():
        if setting.name not in OUTWARD:
            flags += _flag(setting, getattr(config, setting.name))
    return ["--host", "127.0.0.1", "--port", "0", "--exit-with-parent", *flags]


def _flag(setting: Setting, value: object) -> list[str]:
    if setting.is_bool:
        return [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        # An empty one is said too: the environment may have another.
        return [part for each in value or ("",) for part in (setting.flag, each)]
    return [setting.flag, str(value)]


def _address(process: subprocess.Popen[str]) -> str | None:
    """What it prints first; None when it ended instead."""
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    return found[0] if found else None


def _last_words(process: subprocess.Popen[str], log: TextIO) -> str:
    process.wait()
    log.seek(0)
    lines = log.read().strip().splitlines()
    return lines[-1].removeprefix("starling: ") if lines else f"the service ended with {process.returncode}"


def bearing(key: str) -> dict[str, str]:
    """The headers of a request with that key; an empty one is none."""
    return {"authorization": f"Bearer {key}"} if key else {}


def wait_ready(url: str, report: Callable[[str], None], key: str) -> None:
    """Return once the service can transcribe. Raises Unavailable when it says that it never will by itself."""
    while True:
        try:
            answer = httpx.get(f"{url}/ready", timeout=30, headers=bearing(key))
        except httpx.HTTPError as error:
            raise Unavailable(f"the service at {url} does not answer: {error}") from error
        if answer.status_code == httpx.codes.OK:
            return
        body = answer.json()
        speech = [line for line in body.get("workers", ()) if not line["name"].startswith("llm")]
        if speech and all(line["ready"] for line in speech):
            return
        if body.get("status") != "starting":
            raise Unavailable(body["error"]["message"])
        report(body["error"]["message"])
        time.sleep(LOOK_S)
