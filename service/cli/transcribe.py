"""`starling transcribe`: files in, texts out, through a running service or one started for the run.

Knows the HTTP contract of one route and how a terminal shows progress; knows nothing of audio.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from service.cli import address, keys
from service.cli.own_service import Unavailable, bearing, started, wait_ready
from service.cli.refusal import CannotServe
from service.config import Config

SUFFIXES = {"text": "txt", "json": "json", "verbose_json": "json", "srt": "srt", "vtt": "vtt"}

TIMEOUT = httpx.Timeout(10.0, read=None, write=120.0)
"""An answer takes as long as the recording needs: the service itself ends what hangs."""


NAME = "recording"
"""What every upload is called: its own name may be in any encoding, and the service does not look at it."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of the service for every file."""

    format: str = "text"
    language: str | None = None
    translate: bool = False
    prompt: str | None = None
    model: str | None = None

    @property
    def path(self) -> str:
        return "/v1/audio/translations" if self.translate else "/v1/audio/transcriptions"

    @property
    def fields(self) -> dict[str, str]:
        given = {"language": self.language, "prompt": self.prompt, "model": self.model}
        return {"response_format": self.format} | {name: _utf8(value) for name, value in given.items() if value}


def _utf8(argument: str) -> str:
    """A word of the command line as UTF-8, whatever the locale took it for."""
    return os.fsencode(argument).decode("utf-8", "replace")


class Refused(Exception):
    """One file got no text; the message says why."""


def run(files: Sequence[str], wanted: Wanted, output: str | None, url: str | None, config: Config) -> int:
    """Transcribe each file in turn. 1 when any of them failed, or when there is no service."""
    paths = [Path(file) for file in files]
    folder = Path(output) if output else None
    names = output_names(paths, SUFFIXES[wanted.format])
    failed = 0
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        config, _ = keys.settled(config)
        with (
            Screen() as screen,
            _service(url, config, screen.say) as (service, key),
            httpx.Client(timeout=TIMEOUT, headers=bearing(key)) as client,
        ):
            for path, name in zip(paths, names, strict=True):
                try:
                    result = _ask(client, service, path, wanted, screen)
                except Refused as refused:
                    failed += 1
                    screen.complain(f"{path}: {refused}")
                    continue
                screen.put(result, folder / name if folder else None)
    except (Unavailable, CannotServe) as error:
        print(f"starling: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"starling: cannot write to {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def output_names(inputs: Sequence[Path], suffix: str) -> list[Path]:
    """A file name for each input, all different (also where case does not count), none of them an input's own name.

    `talk.mp3` becomes `talk.srt`; beside a `talk.wav`, `talk.mp3.srt`; beside another `talk.mp3`, `talk.mp3.2.srt`.
    """
    stems = [path.stem.lower() for path in inputs]
    taken = {path.name.lower() for path in inputs}
    names = []
    for path in inputs:
        name = f"{path.stem}.{suffix}"
        if stems.count(path.stem.lower()) > 1 or name.lower() in taken:
            name = f"{path.name}.{suffix}"
        number = 2
        while name.lower() in taken:
            name = f"{path.name}.{number}.{suffix}"
            number += 1
        taken.add(name.lower())
        names.append(Path(name))
    return names


@contextmanager
def _service(url: str | None, config: Config, report: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """The one that was named, else the one that runs on the configured port, else one of our own; and its key."""
    key = config.api_key[0] if config.api_key else ""
    running = url.rstrip("/") if url else address.url(config.host, config.port)
    who = address.who_answers(running)
    if who == address.STARLING:
        wait_ready(running, report, key)
        yield running, key
    elif url:
        raise Unavailable(f"no Starling answers at {running}" + (f", but {who}" if who else ""))
    else:
        report("starting a service for this run")
        with started(config, report) as own:
            yield own


def _ask(client: httpx.Client, service: str, path: Path, wanted: Wanted, screen: Screen) -> str:
    """The service's answer as text. Raises Refused."""
    try:
        with screen.file(path) as progress, Upload(path, progress) as file:
            answer = client.post(service + wanted.path, data=wanted.fields, files={"file": (NAME, file)})
    except OSError as error:
        raise Refused(error.strerror or str(error)) from error
    except httpx.HTTPError as error:
        raise Refused(f"the service did not answer: {error or type(error).__name__}") from error
    if answer.status_code != httpx.codes.OK:
        raise Refused(_message(answer))
    return answer.text


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the service answered {answer.status_code}"


class Upload(io.BufferedReader):
    """A file that says how much of it was read."""

    def __init__(self, path: Path, progress: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path))
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._progress(len(block))
        return block


class Screen:
    """Results on stdout; progress and complaints on stderr, progress only where that is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._now: TaskID | None = None

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """What is going on before the first file."""
        if self._now is None:
            self._now = self._bar.add_task("", total=None)
        self._bar.update(self._now, description=escape(text))

    @contextmanager
    def file(self, path: Path) -> Iterator[Callable[[int], None]]:
        """A bar for one file: it fills while the file is sent and moves to and fro while it is transcribed."""
        if self._now is not None:
            self._bar.remove_task(self._now)
            self._now = None
        size = path.stat().st_size
        name = escape(path.name)
        task = self._bar.add_task(f"sending {name}", total=size)
        sent = 0

        def progress(count: int) -> None:
            nonlocal sent
            sent += count
            self._bar.update(task, completed=sent)
            if sent >= size:
                self._bar.update(task, description=f"transcribing {name}", total=None)

        try:
            yield progress
        finally:
            self._bar.remove_task(task)

    def put(self, result: str, target: Path | None) -> None:
        """One result, to the file or to stdout."""
        whole = result if result.endswith("\n") else result + "\n"
        if target is None:
            # Rich moves a live bar out of the way of its own output only.
            self._bar.stop()
            sys.stdout.write(whole)
            sys.stdout.flush()
            self._bar.start()
            return
        partial = target.with_name(target.name + ".part")
        partial.write_text(whole, "utf-8")
        partial.replace(target)
        self._console.print(f"{target}", highlight=False, markup=False, soft_wrap=True)

    def complain(self, text: str) -> None:
        self._console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
