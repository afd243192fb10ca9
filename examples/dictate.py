"""Dictate to a running Starling: a file at the speed it was spoken, or the microphone.

    python examples/dictate.py talk.wav
    python examples/dictate.py --microphone --partials     # pip install --require-hashes -r locks/microphone.txt

What is heard appears on stderr while it is spoken, the whole text on stdout at the end; Ctrl-C ends the dictation.
Needs httpx, and soundfile for files. `Dictation` is all that an application of its own needs.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

URL = "http://127.0.0.1:8080"
CHUNK_S = 0.1
MICROPHONE_RATE = 16_000
PATIENCE_S = 120.0
"""Seconds for which an unreachable server is waited for."""
RETRY_S = 0.25
AT_WORK_S = 1.0
"""A request that was broken off after so long was being worked on: the server was there until then."""
SILENT_S = 10.0
"""Seconds without any samples after which a microphone is taken to be gone."""


class Refused(Exception):
    """The server said no, and would say so again."""


class Dictation:
    """One session. Everything it sends may safely be sent again, so a server that restarts is only waited for.

    One thread adds and finishes, others may read `events` meanwhile. `asked`: the fields of POST /v1/audio/sessions.
    """

    def __init__(self, url: str = URL, content_type: str = "audio/pcm", **asked: object) -> None:
        self._client = httpx.Client(base_url=url, timeout=httpx.Timeout(60.0, read=300.0))
        self._content_type = content_type
        self._number = 0
        self.session: dict[str, Any] = self._ask("POST", "/v1/audio/sessions", json=asked)
        self._path = f"/v1/audio/sessions/{self.session['id']}"

    def __enter__(self) -> Dictation:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def add(self, audio: bytes) -> dict[str, Any]:
        """Send the next chunk; when this returns, the server never loses it."""
        headers = {"content-type": self._content_type, "x-starling-seq": str(self._number)}
        answer = self._ask("POST", f"{self._path}/audio", content=audio, headers=headers)
        self._number += 1
        return answer

    def finish(self) -> dict[str, Any]:
        """The whole transcript, in the session's `response_format`."""
        return self._ask("POST", f"{self._path}/finish")

    def remove(self) -> None:
        """Forget the session, and all that the server keeps of it."""
        self._ask("DELETE", self._path)

    def events(self, last_id: str | None = None) -> Iterator[tuple[str | None, dict[str, Any]]]:
        """(id, event) from the start or from after `last_id`, to the end; a broken stream is resumed where it broke."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            headers, reached = {"last-event-id": last_id} if last_id else {}, False
            try:
                with self._client.stream("GET", f"{self._path}/events", headers=headers, timeout=60.0) as stream:
                    reached = not stream.is_error
                    if not reached and not _passes(stream):
                        raise Refused(_said(stream))
                    for number, event in _parsed(stream.iter_lines()):
                        if event["type"] == "error" and number is None:
                            break  # The stream's own trouble, such as a shutdown; the session's has an id.
                        last_id = number or last_id
                        yield number, event
                        if event["type"] in ("session.closed", "error"):
                            return
                    else:
                        if reached:
                            return  # Ended and not broken off: nothing comes after `last_id`.
            except httpx.TransportError:
                pass
            if reached:
                deadline = time.monotonic() + PATIENCE_S
            elif time.monotonic() > deadline:
                raise TimeoutError(f"no events from the server for {PATIENCE_S:.0f} s")
            time.sleep(RETRY_S)

    def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The answer, for as many attempts as it takes."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            wait, began = RETRY_S, time.monotonic()
            try:
                answer = self._client.request(method, path, **request)
            except httpx.TransportError as error:
                unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not unreachable and time.monotonic() - began > AT_WORK_S:
                    deadline = time.monotonic() + PATIENCE_S
                elif time.monotonic() > deadline:
                    raise
            else:
                if answer.is_success:
                    return dict(answer.json()) if answer.content else {}
                if not _passes(answer) or time.monotonic() > deadline:
                    raise Refused(_said(answer))
                wait = int(answer.headers.get("retry-after-ms", RETRY_S * 1000)) / 1000
            time.sleep(wait)


def _passes(answer: httpx.Response) -> bool:
    """Whether the same request may succeed later."""
    return answer.status_code in (429, 503) and answer.headers.get("x-should-retry") != "false"


def _said(answer: httpx.Response) -> str:
    body = answer.read()
    try:
        return f"{answer.status_code}: {json.loads(body)['error']['message']}"
    except (ValueError, LookupError, TypeError):  # Something else than Starling answered.
        return f"{answer.status_code} {answer.reason_phrase} from {answer.url}"


def _parsed(lines: Iterator[str]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Server-sent events: an optional id, and data that is one line of JSON."""
    number = data = None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            number = value
        elif name == "data":
            data = value
        elif not line and data is not None:
            yield number, json.loads(data)
            number = data = None


class Screen:
    """Committed text line by line, and below it one line that is rewritten while an utterance is open."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def show(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "transcript.text.partial" if self._is_terminal:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r\033[K\033[2m{event['text'].strip()[-width:]}\033[0m")
            case "transcript.text.delta":
                sys.stderr.write(("\r\033[K" if self._is_terminal else "") + event["delta"].strip() + "\n")
            case "error":
                sys.stderr.write(f"\n{event['error']['message']}\n")
        sys.stderr.flush()


def from_file(path: Path, speed: float, stopped: threading.Event) -> tuple[str, Iterator[bytes]]:
    """The content type of a file's samples, and its chunks, each when its last sample would have been spoken."""
    try:
        import soundfile
    except ImportError as error:
        raise Refused(f"a file needs the package soundfile ({error})") from error
    if not path.is_file():
        raise Refused(f"there is no file {path}")
    try:
        info = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError) as error:
        raise Refused(f"{error} (what soundfile cannot read can be sent whole: docs/dictation.md, Audio)") from error
    if not 8_000 <= info.samplerate <= 48_000 or info.channels > 2:
        raise Refused(f"{info.samplerate} Hz with {info.channels} channels: samples go at 8 to 48 kHz, mono or stereo")

    def chunks() -> Iterator[bytes]:
        due = time.monotonic()
        for block in soundfile.blocks(path, round(info.samplerate * CHUNK_S), dtype="float32"):
            due += len(block) / info.samplerate / speed
            if stopped.wait(max(0.0, due - time.monotonic())):
                return
            yield block.astype("<f4").tobytes()

    return f"audio/pcm;rate={info.samplerate};channels={info.channels}", chunks()


def from_microphone(stopped: threading.Event, owned: ExitStack) -> tuple[str, Iterator[bytes]]:
    """As `from_file`. The recording waits in memory while the server does not answer; it ends with `owned`."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: the package is there, but PortAudio is not
        raise Refused(f"--microphone needs sounddevice (locks/microphone.txt) and PortAudio ({error})") from error

    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    try:
        rate = _microphone_rate(sounddevice)
        stream = sounddevice.RawInputStream(
            samplerate=rate,
            channels=1,
            dtype="int16",
            blocksize=round(rate * CHUNK_S),
            callback=lambda samples, frames, at, status: heard.put(bytes(samples)),
        )
        owned.callback(stream.close)
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:  # ValueError: there is no such device
        raise Refused(f"the microphone cannot be used: {error}") from error

    def chunks() -> Iterator[bytes]:
        while not stopped.is_set():
            try:
                yield heard.get(timeout=SILENT_S)
            except queue.Empty:
                raise Refused(f"nothing comes from the microphone for {SILENT_S:.0f} s") from None
        stream.stop()
        while not heard.empty():
            yield heard.get()

    endianness = "s16le" if sys.byteorder == "little" else "s16be"
    return f"audio/pcm;encoding={endianness};rate={rate}", chunks()


def _microphone_rate(sounddevice: Any) -> int:
    """Speech needs no more than 16 kHz, but not every device gives that."""
    try:
        sounddevice.check_input_settings(channels=1, dtype="int16", samplerate=MICROPHONE_RATE)
    except sounddevice.PortAudioError:
        return round(sounddevice.query_devices(kind="input")["default_samplerate"])
    return MICROPHONE_RATE


def dictate(options: argparse.Namespace, stopped: threading.Event) -> str:
    """The whole text of what is fed until the source ends or `stopped`; shows events meanwhile."""
    asked = {name: getattr(options, name) for name in ("language", "segmentation", "partials")}
    with ExitStack() as owned:
        if options.microphone:
            content_type, chunks = from_microphone(stopped, owned)
        else:
            content_type, chunks = from_file(options.file, options.speed, stopped)
        _check_server(options.url)
        session = owned.enter_context(Dictation(options.url, content_type, **asked))
        reader = threading.Thread(target=follow, args=(session, Screen()), daemon=True)
        reader.start()
        for chunk in chunks:
            session.add(chunk)
        text = str(session.finish()["text"])
        reader.join()
        session.remove()
        return text


def _check_server(url: str) -> None:
    """Later a server that is gone is waited for; one that was never there is told at once."""
    try:
        httpx.get(f"{url}/health", timeout=10.0)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise Refused(f"no server answers at {url} ({error}); `starling serve` starts one") from error


def follow(session: Dictation, screen: Screen) -> None:
    try:
        for _, event in session.events():
            screen.show(event)
    except (Refused, TimeoutError) as error:
        print(f"no more events: {error}", file=sys.stderr)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number over 0, not {text!r}")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Dictate a file or the microphone to a running Starling.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", type=Path, help="a file that soundfile reads")
    source.add_argument("--microphone", action="store_true", help="what is said now, until Ctrl-C")
    parser.add_argument("--url", default=URL, help=f"of the server ({URL})")
    parser.add_argument("--language", help="as a code or an English name (detect)")
    parser.add_argument("--partials", action="store_true", help="show an utterance while it is spoken")
    parser.add_argument("--segmentation", choices=("vad", "window"), default="vad", help="(vad)")
    parser.add_argument("--speed", type=positive, default=1.0, help="feed a file faster than it was spoken (1.0)")
    options = parser.parse_args()

    stopped = threading.Event()

    def stop(*_: object) -> None:
        # A flag and no exception, so that a chunk under way is still acknowledged. The second Ctrl-C is the usual one.
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    try:
        print(dictate(options, stopped))
    except (Refused, httpx.TransportError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
