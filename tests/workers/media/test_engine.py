"""The engine between its steps: fairness, cancellation, failures, and the limits of its process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import InternalError, Kind
from protocol.events import Decoded, Event, Failed, Followed, Progress, Ready, Speech
from protocol.jobs import Decode, DetectSpeech, Follow, Pcm, Raw, Run, Transcribe
from protocol.settings import MediaSettings
from tests import audio_inputs as make
from tests.workers.media.process import in_a_process
from workers.media.engine import MediaEngine
from workers.media.speech import Silero


@pytest.fixture
def engine() -> MediaEngine:
    return MediaEngine(MediaSettings(), Silero())


def job(folder: Path, name: str, data: bytes) -> Decode:
    source = folder / name
    source.write_bytes(data)
    return Decode(str(source), str(folder / f"{name}.pcm"))


def tone(seconds: float) -> bytes:
    return make.sound((0.3 * np.sin(np.arange(int(16_000 * seconds)) * 0.1)).astype(np.float32))


def finish(engine: MediaEngine, steps: int = 1_000) -> None:
    for _ in range(steps):
        if not engine.busy:
            return
        engine.step()
    raise AssertionError(f"still busy after {steps} steps")


def test_it_takes_two_files_at_once(engine: MediaEngine) -> None:
    assert engine.ready == Ready(capacity=2)
    assert MediaEngine(MediaSettings(capacity=32), Silero()).ready == Ready(capacity=32)
    assert not engine.blocking
    assert not engine.busy


def test_a_job_answers_with_progress_and_then_decoded(engine: MediaEngine, tmp_path: Path) -> None:
    events: list[Event] = []
    engine.admit(job(tmp_path, "a", tone(25)), events.append)
    finish(engine)
    assert [event for event in events if isinstance(event, Progress)] == [
        Progress(0.0, 25.0),
        Progress(10.0, 25.0),
        Progress(20.0, 25.0),
        Progress(25.0, 25.0),
    ]
    assert isinstance(events[-1], Decoded)
    assert events[-1].samples == 400_000
    assert (tmp_path / "a.pcm").stat().st_size == 800_000


def test_a_short_file_does_not_wait_for_a_long_one(engine: MediaEngine, tmp_path: Path) -> None:
    ended: list[str] = []
    for name, seconds in (("long", 200), ("short", 1)):
        engine.admit(
            job(tmp_path, name, tone(seconds)),
            lambda event, name=name: ended.append(name) if isinstance(event, Decoded) else None,
        )
    finish(engine)
    assert ended == ["short", "long"]


def test_a_failure_is_emitted_and_the_other_file_goes_on(engine: MediaEngine, tmp_path: Path) -> None:
    bad: list[Event] = []
    good: list[Event] = []
    engine.admit(job(tmp_path, "bad", b"no audio at all"), bad.append)
    engine.admit(job(tmp_path, "good", tone(1)), good.append)
    finish(engine)
    assert isinstance(bad[-1], Failed)
    assert (bad[-1].kind, bad[-1].param) == (Kind.UNDECODABLE_AUDIO, "file")
    assert isinstance(good[-1], Decoded)


def test_cancelling_forgets_the_job_and_removes_its_target(engine: MediaEngine, tmp_path: Path) -> None:
    events: list[Event] = []
    handle = engine.admit(job(tmp_path, "a", tone(100)), events.append)
    engine.step()
    engine.step()
    assert (tmp_path / "a.pcm").exists()
    said = len(events)
    engine.cancel(handle)
    engine.cancel(handle)
    assert not engine.busy
    engine.step()
    assert len(events) == said
    assert not (tmp_path / "a.pcm").exists()


def test_cancelling_after_the_end_keeps_the_result(engine: MediaEngine, tmp_path: Path) -> None:
    handle = engine.admit(job(tmp_path, "a", tone(1)), lambda event: None)
    finish(engine)
    engine.cancel(handle)
    assert (tmp_path / "a.pcm").stat().st_size == 32_000


def test_speech_is_found_while_a_file_is_decoded(engine: MediaEngine, tmp_path: Path) -> None:
    (tmp_path / "silence.pcm").write_bytes(bytes(2 * 16_000 * 30))
    decoding: list[Event] = []
    finding: list[Event] = []
    engine.admit(job(tmp_path, "a", tone(100)), decoding.append)
    engine.admit(DetectSpeech(Pcm(str(tmp_path / "silence.pcm"), 0, 16_000 * 30)), finding.append)
    while not isinstance(finding[-1] if finding else None, Speech):
        engine.step()
    assert not isinstance(decoding[-1], Decoded)
    finish(engine)
    assert isinstance(decoding[-1], Decoded)


def test_looking_for_speech_is_cancelled_between_two_steps(engine: MediaEngine, tmp_path: Path) -> None:
    (tmp_path / "silence.pcm").write_bytes(bytes(2 * 16_000 * 30))
    events: list[Event] = []
    handle = engine.admit(DetectSpeech(Pcm(str(tmp_path / "silence.pcm"), 0, 16_000 * 30)), events.append)
    engine.step()
    engine.cancel(handle)
    assert not engine.busy
    assert events == [Progress(9.984, 30.0)]


def test_audio_that_is_not_there_is_no_silence(engine: MediaEngine, tmp_path: Path) -> None:
    (tmp_path / "short.pcm").write_bytes(bytes(100))
    for path, kind in (("short.pcm", Kind.INTERNAL_ERROR), ("nowhere.pcm", Kind.REQUEST_CANCELLED)):
        events: list[Event] = []
        engine.admit(DetectSpeech(Pcm(str(tmp_path / path), 0, 16_000)), events.append)
        finish(engine)
        assert isinstance(events[-1], Failed)
        assert events[-1].kind is kind


def test_dictations_go_on_while_a_long_one_is_made_up_for(engine: MediaEngine, tmp_path: Path) -> None:
    raw = Raw("s16le", 48_000, 2)
    ended: list[str] = []
    for name, seconds in (("long", 20), ("short", 0.1)):
        data = bytes(int(48_000 * seconds) * raw.frame_bytes)
        (tmp_path / name).write_bytes(data)
        follow = Follow((Run(str(tmp_path / name), 0, len(data), raw),), str(tmp_path / f"{name}.pcm"), 0, 0, True)
        engine.admit(follow, lambda event, name=name: ended.append(name) if isinstance(event, Followed) else None)
    finish(engine)
    assert ended == ["short", "long"]
    assert (tmp_path / "long.pcm").stat().st_size == 2 * 16_000 * 20


def test_a_dictation_whose_file_is_damaged_fails_alone(engine: MediaEngine, tmp_path: Path) -> None:
    events: dict[str, list[Event]] = {"bad": [], "good": []}
    for name, data in (("bad", b"no audio at all"), ("good", tone(1))):
        (tmp_path / name).write_bytes(data)
        follow = Follow((Run(str(tmp_path / name), 0, len(data), None),), str(tmp_path / f"{name}.pcm"), 0, 0, True)
        engine.admit(follow, events[name].append)
    finish(engine)
    assert isinstance(events["bad"][-1], Failed)
    assert events["bad"][-1].kind is Kind.UNDECODABLE_AUDIO
    assert isinstance(events["good"][-1], Followed)
    assert (events["good"][-1].samples, events["good"][-1].runs) == (16_000, 1)


def test_a_job_for_another_engine_is_refused(engine: MediaEngine) -> None:
    with pytest.raises(InternalError):
        engine.admit(Transcribe(Pcm("nowhere", 0, 1)), lambda event: None)


# ---- the process -------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    minute = (0.3 * np.sin(np.arange(16_000 * 60) * 0.1)).astype(np.float32)
    half_hour = job(tmp_path, "half_hour.flac", make.sound(np.tile(minute, 30), "FLAC")).source
    events, growth, _ = in_a_process(512 << 20, half_hour)
    assert events[0]["samples"] == 1800 * 16_000
    assert growth < 64 << 10  # as float32 the recording is 110 MiB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's address space")
def test_a_file_that_needs_too_much_memory_costs_only_itself(tmp_path: Path) -> None:
    wide = make.sound(np.zeros((200_000, 60), np.float32), rate=96_000)
    events, _, _ = in_a_process(
        24 << 20, job(tmp_path, "wide.wav", wide).source, job(tmp_path, "narrow.wav", tone(1)).source
    )
    assert (events[0]["type"], events[0]["kind"]) == ("failed", "undecodable_audio")
    assert "memory" in str(events[0]["message"])
    assert (events[1]["type"], events[1]["samples"]) == ("decoded", 16_000)


def test_a_header_that_claims_24_channels_of_aac_does_not_end_the_process(tmp_path: Path) -> None:
    mono = make.encode((0.3 * np.sin(np.arange(48_000) * 0.1)).astype(np.float32), "mp4", "aac", 48_000)
    config = b"\x05\x80\x80\x80\x05\x11\x88"  # esds: AAC-LC, 48 kHz, one channel
    assert config in mono
    wide = mono.replace(config, config[:-1] + b"\xe8")  # 13: the 22.2 layout
    events, _, _ = in_a_process(1 << 30, *(job(tmp_path, str(i), wide).source for i in range(5)))
    assert {event["type"] for event in events} <= {"decoded", "failed"}


def test_damaged_files_do_not_chatter(tmp_path: Path) -> None:
    mp3 = make.encode((0.3 * np.sin(np.arange(48_000) * 0.1)).astype(np.float32), "mp3", "libmp3lame")
    holed = mp3[:2_000] + np.random.default_rng(3).bytes(2_000) + mp3[4_000:]
    files = {"holed": holed, "junk": np.random.default_rng(4).bytes(50_000), "cut": mp3[: len(mp3) // 2 + 7]}
    events, _, printed = in_a_process(1 << 30, *(job(tmp_path, name, data).source for name, data in files.items()))
    assert [event["type"] for event in events] == ["decoded", "failed", "decoded"]
    assert printed == ""
