"""The engine in its own process, with real weights: what the service gets to see."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.events import Failed, FromWorker, Loading, Progress, Ready, Segment, Transcribed
from protocol.jobs import Cancel, Decoding, Pcm, Transcribe
from protocol.settings import WhisperSettings
from protocol.wire import Codec, frame
from tests.speech import timeline

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def converse(settings: WhisperSettings, *frames: bytes, answers: int) -> list[tuple[int, FromWorker]]:
    """Everything that a worker process says until `answers` jobs are over."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "workers", str(theirs.fileno())]
    heard: list[tuple[int, FromWorker]] = []
    with (
        ours,
        subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={"PYTHONPATH": str(ROOT)}
        ) as process,
    ):
        theirs.close()
        ours.sendall(b"".join([frame(0, settings), *frames]))
        codec = Codec[FromWorker](FromWorker)
        with ours.makefile("rb") as pipe:
            while answers and (frame_ := codec.read(pipe)) is not None:
                heard.append(frame_)
                answers -= isinstance(frame_[1], Transcribed | Failed)
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(20) == 0
    return heard


def test_a_process_loads_transcribes_refuses_and_cancels(model_data_dir: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    samples = timeline("The quick brown fox jumps over the lazy dog.", 0.5)
    samples.tofile(spool)
    audio = Pcm(str(spool), 0, len(samples))
    heard = converse(
        WhisperSettings(model="whisper-tiny.en", data_dir=str(model_data_dir), offline=True),
        frame(1, Transcribe(audio)),
        frame(2, Transcribe(audio, task="translate")),
        frame(3, Transcribe(audio, decoding=Decoding(language="de"))),
        frame(4, Transcribe(audio)),
        frame(4, Cancel()),
        answers=4,
    )
    ready = next(message for _, message in heard if isinstance(message, Ready))
    assert ready.capacity == 32
    assert ready.model is not None
    assert (ready.model.id, ready.model.translates) == ("whisper-tiny.en", False)
    assert ready.backend.name in ("cpu", "metal", "cuda")
    assert all(job == 0 for job, message in heard if isinstance(message, Loading))
    failures = {job: message.kind for job, message in heard if isinstance(message, Failed)}
    assert failures == {2: "unsupported_task", 3: "invalid_value", 4: "request_cancelled"}
    said = "".join(message.text for job, message in heard if isinstance(message, Segment))
    assert "quick brown fox" in said
    assert heard[-1][0] == 1
    assert isinstance(heard[-1][1], Transcribed)
    assert any(isinstance(message, Progress) and job == 1 for job, message in heard)
