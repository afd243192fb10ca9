"""A service that a command starts for itself on a free port, and ends when it is done.

Knows how to run `starling serve`; asks nothing of it but whether it is ready.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import httpx

from service.config import Config, Setting, settings

LOOK_S = 0.2
END_S = 30.0
"""What an idle service may take to end; nothing runs in it by then."""


class Unavailable(Exception):
    """There is no service to work through; the message says why."""


@contextmanager
def started(config: Config, report: Callable[[str], None]) -> Iterator[str]:
    """The URL of a service with these settings, once it is ready. Raises Unavailable.

    It also ends when this process dies, because its standard input ends then.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log, _process(config, log) as process:
        url = _address(process)
        if url is None:
            raise Unavailable(_last_words(process, log))
        wait_ready(url, report)
        yield url


@contextmanager
def _process(config: Config, log: TextIO) -> Iterator[subprocess.Popen[str]]:
    # A session of its own: Ctrl-C reaches this process alone, which then ends the service in good order.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "service", "serve", "--until-eof", *_flags(config)],
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
    for setting in settings().values():
        if setting.name not in ("host", "port"):
            # Whoever transcribes needs no language model.
            flags += _flag(setting, "" if setting.name == "llm_model" else getattr(config, setting.name))
    return ["--host", "127.0.0.1", "--port", "0", *flags]


def _flag(setting: Setting, value: object) -> list[str]:
    if setting.is_bool:
        return [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
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


def wait_ready(url: str, report: Callable[[str], None]) -> None:
    """Return once the service can transcribe. Raises Unavailable when it says that it never will by itself."""
    while True:
        try:
            answer = httpx.get(f"{url}/ready", timeout=30)
        except httpx.HTTPError as error:
            raise Unavailable(f"the service at {url} does not answer: {error}") from error
        if answer.status_code == httpx.codes.OK:
            return
        body = answer.json()
        if all(line["ready"] for line in body.get("workers", ()) if line["name"] != "llm") and "workers" in body:
            return
        if body.get("status") != "starting":
            raise Unavailable(body["error"]["message"])
        report(body["error"]["message"])
        time.sleep(LOOK_S)
