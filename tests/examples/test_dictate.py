"""What the example client says when it cannot do its work, and that a microphone's sound is sent as it came."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from examples import dictate


class PortAudioError(Exception):
    pass


class Stream:
    """A microphone that gives three blocks as soon as it is started, then nothing."""

    def __init__(self, *, samplerate: int, blocksize: int, callback: Any, **settings: Any) -> None:
        self.settings = settings
        self._blocks = [bytes([number]) * 2 * blocksize for number in (1, 2, 3)]
        self._callback = callback
        self.closed = False

    def start(self) -> None:
        for block in self._blocks:
            self._callback(memoryview(block), len(block) // 2, None, None)

    def stop(self) -> None:
        """Nothing more comes anyway."""

    def close(self) -> None:
        self.closed = True


def sounddevice(*, rate: int = 16_000, error: Exception | None = None) -> SimpleNamespace:
    """As the package by that name, as far as the example uses it, with a device that only knows `rate`."""

    def check_input_settings(*, channels: int, dtype: str, samplerate: int) -> None:
        assert (channels, dtype) == (1, "int16")
        if error or samplerate != rate:
            raise error or PortAudioError("Invalid sample rate")

    def query_devices(*, kind: str) -> dict[str, float]:
        if error:
            raise error
        return {"input": {"default_samplerate": float(rate)}}[kind]

    return SimpleNamespace(
        PortAudioError=PortAudioError,
        check_input_settings=check_input_settings,
        query_devices=query_devices,
        RawInputStream=Stream,
    )


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run it; what it says on stderr, the only thing that it says."""
    monkeypatch.setattr(sys, "argv", ["dictate.py", *arguments])
    assert dictate.main() == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    return told.err


def test_a_file_that_is_not_there_or_is_no_sound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "there is no file" in said(monkeypatch, capsys, str(tmp_path / "none.wav"))
    (tmp_path / "text.wav").write_text("no sound")
    assert "Format not recognised" in said(monkeypatch, capsys, str(tmp_path / "text.wav"))
    soundfile.write(tmp_path / "fast.wav", np.zeros(100, np.float32), 96_000)
    assert "96000 Hz with 1 channels: samples go at 8 to 48 kHz" in said(
        monkeypatch, capsys, str(tmp_path / "fast.wav")
    )


def test_a_server_that_is_not_there_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(100, np.float32), 16_000)
    # Port 0 is nobody's.
    error = said(monkeypatch, capsys, str(tmp_path / "a.wav"), "--url", "http://127.0.0.1:0")
    assert error.startswith("no server answers at http://127.0.0.1:0")
    assert "starling serve" in error


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "--microphone needs sounddevice"),
        (sounddevice(error=ValueError("No input device found")), "cannot be used: No input device found"),
        (sounddevice(error=PortAudioError("Error querying device -1")), "cannot be used"),
    ],
)
def test_a_microphone_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    assert message in said(monkeypatch, capsys, "--microphone")


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_a_microphone_s_sound_is_sent_as_it_came_at_a_rate_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", sounddevice(rate=rate))
    stopped = threading.Event()
    with ExitStack() as owned:
        content_type, chunks = dictate.from_microphone(stopped, owned)
        first = next(chunks)
        stopped.set()
        heard = [first, *chunks]
    kind = "s16le" if sys.byteorder == "little" else "s16be"
    assert content_type == f"audio/pcm;encoding={kind};rate={rate}"
    assert heard == [bytes([number]) * 2 * (rate // 10) for number in (1, 2, 3)]


def test_a_microphone_that_falls_silent_for_good_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", sounddevice())
    monkeypatch.setattr(dictate, "SILENT_S", 0.01)
    with ExitStack() as owned:
        _, chunks = dictate.from_microphone(threading.Event(), owned)
        with pytest.raises(dictate.Refused, match="nothing comes from the microphone"):
            list(chunks)


@pytest.mark.parametrize("speed", ["0", "-1", "inf", "nan", "fast"])
def test_a_speed_is_a_number_over_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], speed: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["dictate.py", "a.wav", f"--speed={speed}"])
    with pytest.raises(SystemExit):
        dictate.main()
    assert f"must be a number over 0, not '{speed}'" in capsys.readouterr().err


def breaking_off(server: socket.socket, answers: Sequence[bytes], held_s: float) -> None:
    """Serve one connection after the other: each request is held for a while and then broken off, or answered."""
    with suppress(OSError):  # The test is over.
        for answer in answers:
            with server.accept()[0] as connection:
                connection.recv(65536)
                time.sleep(0.0 if answer else held_s)
                connection.sendall(answer)


OPENED = b'HTTP/1.1 201 Created\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"id": "a"}'
FINISHED = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"text": "a"}'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STARTING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
CLOSED = b'id: 1\ndata: {"type": "session.closed"}\n\n'


@pytest.mark.port
def test_a_stream_that_breaks_off_or_has_to_wait_goes_on() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        told = STREAM + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CLOSED), CLOSED)
        served = threading.Thread(
            target=breaking_off, args=(server, (OPENED, STREAM, STARTING, told), 0.0), daemon=True
        )
        served.start()
        with dictate.Dictation(f"http://127.0.0.1:{server.getsockname()[1]}") as session:
            assert list(session.events()) == [("1", {"type": "session.closed"})]
        served.join()


@pytest.mark.port
@pytest.mark.parametrize(("at_work_s", "lasts"), [(0.1, True), (10.0, False)])
def test_a_server_that_was_at_work_until_it_broke_off_is_waited_for_anew(
    monkeypatch: pytest.MonkeyPatch, at_work_s: float, lasts: bool
) -> None:
    """Together the attempts take longer than a server is waited for that cannot be reached."""
    monkeypatch.setattr(dictate, "PATIENCE_S", 0.5)
    monkeypatch.setattr(dictate, "AT_WORK_S", at_work_s)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        answers = (OPENED, b"", b"", b"", FINISHED)
        served = threading.Thread(target=breaking_off, args=(server, answers, 0.3), daemon=True)
        served.start()
        with dictate.Dictation(f"http://127.0.0.1:{server.getsockname()[1]}") as session:
            if lasts:
                assert session.finish() == {"text": "a"}
            else:
                with pytest.raises(httpx.RemoteProtocolError):
                    session.finish()
        server.shutdown(socket.SHUT_RDWR)
        served.join()
